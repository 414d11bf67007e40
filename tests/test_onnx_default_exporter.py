"""Models of PyTorch's default exporter, which knows the batch of its example, run on batches of other lengths."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr
import varlen_rnn.onnx as vo

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript", reason="torch's default exporter needs onnxscript, which is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's exporter
LENGTHS = [5, 2, 0, 1]
ROOT = Path(__file__).parent.parent


class Layer(torch.nn.Module):
    """A layer with the last states of its batch as further outputs."""

    def __init__(self, kind, layers=1, both=False, batch_first=False, bias=True):
        super().__init__()
        self.batch_first = batch_first
        self.layer = getattr(torch.nn, kind)(
            4, 5, num_layers=layers, bidirectional=both, batch_first=batch_first, bias=bias
        )

    def forward(self, x):
        y, last = self.layer(x)
        return (y, *last) if isinstance(last, tuple) else (y, last)


def exported(module, path, dynamic=()):
    """Export a module with an example of 3 sequences of 6 steps; `dynamic` has the axes of x that stay free."""
    x = torch.randn((3, 6, 4) if module.batch_first else (6, 3, 4))
    free = {axis: torch.export.Dim(f"axis_{axis}") for axis in dynamic}
    torch.onnx.export(module, (x,), path, dynamo=True, dynamic_shapes=(free,) if dynamic else None, verbose=False)
    return path


def check(module, path):
    """Compare a model on sequences of other lengths with the module on each of them alone."""
    program = vo.load(path)
    sequences = [torch.randn(length, 4) for length in LENGTHS]
    rows = vr.create_lod_tensor(torch.cat(sequences).numpy(), [LENGTHS])
    found, *last = vr.Executor().run(program, feed={"x": rows})
    with torch.no_grad():
        alone = [module(part[None] if module.batch_first else part[:, None]) for part in sequences if len(part)]
    y = torch.cat([part[0].squeeze(0 if module.batch_first else 1) for part in alone])
    assert found.lod() == rows.lod()
    np.testing.assert_allclose(found, y, rtol=0, atol=1e-5)
    for state, *parts in zip(last, *(part[1:] for part in alone), strict=True):
        np.testing.assert_allclose(np.asarray(state)[:, np.array(LENGTHS) > 0], torch.cat(parts, 1), rtol=0, atol=1e-5)
        assert not np.asarray(state)[:, 2].any()


@pytest.mark.slow
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "steps first"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers(kind, bias, batch_first, tmp_path):
    torch.manual_seed(0)
    for layers, both in itertools.product((1, 2), (False, True)):
        module = Layer(kind, layers, both, batch_first, bias).eval()
        check(module, exported(module, tmp_path / "a.onnx"))


class Tagger(torch.nn.Module):
    batch_first = True

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.norm, self.behind = torch.nn.LayerNorm(10), torch.nn.Linear(10, 3)

    def forward(self, x):
        y, h = self.layer(x)
        return torch.log_softmax(self.behind(torch.relu(self.norm(y))), -1), h


def tagger():
    torch.manual_seed(0)
    return Tagger().eval()


def layer_of(kind, batch_first):
    torch.manual_seed(0)
    return Layer(kind, 2, True, batch_first).eval()


FREE = list(itertools.product(("LSTM", "GRU"), (True, False), ((0,), (1,), (0, 1))))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the folder of models with free axes, by their place in `FREE`.

    They are exported in a process of its own: after tests of other kinds, the exporter fixed an axis that was free.
    """
    folder = tmp_path_factory.mktemp("models")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.test_onnx_default_exporter", folder], check=True, cwd=ROOT
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FREE)), ids=[f"{kind}-{first}-{free}" for kind, first, free in FREE])
def test_free_axes(number, models):
    check(layer_of(*FREE[number][:2]), models / f"{number}.onnx")


@pytest.mark.slow
def test_a_whole_model(models, tmp_path):
    check(tagger(), exported(tagger(), tmp_path / "a.onnx"))
    check(tagger(), models / "tagger.onnx")


def test_steps_that_were_unrolled(tmp_path):
    path = exported(Layer("RNN").eval(), tmp_path / "a.onnx")
    try:
        program = vo.load(path)
    except vr.ProgramError as error:
        assert "nodes that an operator can compute" in str(error)  # noqa: PT017 - it depends on PyTorch's version
    else:
        assert program.feed_names


if __name__ == "__main__":
    for place, (kind, batch_first, free) in enumerate(FREE):
        exported(layer_of(kind, batch_first), Path(sys.argv[1]) / f"{place}.onnx", free)
    exported(tagger(), Path(sys.argv[1]) / "tagger.onnx", (0, 1))
