"""`python -OO` drops docstrings and assertions: everything works without them."""

import subprocess
import sys

import pytest

STEP = """
import numpy as np
import varlen_rnn as vr
from varlen_rnn.cells import cell, sigmoid, tanh
import varlen_rnn.data, varlen_rnn.distributed, varlen_rnn.interop, varlen_rnn.metrics, varlen_rnn.onnx
import varlen_rnn.baselines, varlen_rnn.sklearn, varlen_rnn.training

@cell
def leaky(a, /, h, *, rate):
    return h + sigmoid(rate) * (tanh(a) - h)

rng = np.random.default_rng(0)
x = vr.create_lod_tensor(rng.standard_normal((5, 3)).astype(np.float32), [[2, 3]])
for layer in (vr.nn.LSTM(3, 4), vr.nn.Recurrent(leaky, 3, 4)):
    optimizer = vr.optim.Adam(layer.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = (layer(x)[0] ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    print(losses[2] < losses[0])
vr.check_operator(vr.nn.functional.tanh)
print(__debug__, vr.__doc__)
"""


def without_docstrings(*arguments):
    done = subprocess.run([sys.executable, "-OO", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_training_step_and_a_cell():
    assert without_docstrings("-c", STEP).split() == ["True", "True", "False", "None"]


@pytest.mark.slow
def test_help_of_commands():
    text = "from varlen_rnn.cli import main\n"
    for command in ([], ["cache"], ["compare"], ["show"], ["train"], ["predict"], ["evaluate"]):
        text += f"try: main({[*command, '--help']})\nexcept SystemExit as end: print(end.code)\n"
    printed = without_docstrings("-c", text)
    assert (printed.count("usage: "), printed.splitlines().count("0")) == (7, 7)
