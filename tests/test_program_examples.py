"""The models of the examples, recorded: their training steps compute the same, bit for bit."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAMES, PADDING = example("classify_names"), example("compare_padding")
# name: (model, optimizer of its parameters, norm to clip gradients to)
TRAINING = {
    "classify_names": (lambda: NAMES.Classifier(30, 4, 8, 16), lambda p: vr.optim.Adam(p, lr=1e-2, lazy=True), 0.1),
    "compare_padding, unpadded": (lambda: PADDING.Model(30, 4, padded=False), vr.optim.Adam, None),
    "compare_padding, padded": (lambda: PADDING.Model(30, 4, padded=True), vr.optim.Adam, None),
}


def batches():
    rng = np.random.default_rng(3)
    for lengths in ([5, 1, 0, 9], [2, 2, 2, 2], [0, 0, 0, 1], [30, 1, 1, 4]):
        yield vr.create_lod_tensor(rng.integers(0, 30, sum(lengths)), [lengths]), rng.integers(0, 4, 4)


def step(model, optimizer, max_norm, ids, labels):
    """The training step, the same code for values and for a program; return the loss."""
    loss = vr.nn.functional.cross_entropy(model(ids), labels)
    loss.backward()
    if max_norm is not None:
        vr.optim.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def begin(name):
    """Return the arguments of `step`, the same at every call."""
    make_model, make_optimizer, max_norm = TRAINING[name]
    vr.manual_seed(7)
    model = make_model()
    return model, make_optimizer(model.parameters()), max_norm


def record(name):
    """Return the recorded training step, its model, and the loss's name."""
    model, optimizer, max_norm = begin(name)
    with vr.program_guard() as program:
        ids, labels = vr.feed_data("ids", [-1], "int64", lod_level=1), vr.feed_data("labels", [-1], "int64")
        loss = step(model, optimizer, max_norm, ids, labels)
    return program, model, optimizer, loss.name


@pytest.mark.parametrize("name", TRAINING)
def test_a_recorded_training_step_is_the_eager_one(name):
    eager = begin(name)
    losses = [step(*eager, *batch).item() for batch in batches()]
    program, model, optimizer, loss = record(name)
    executor = vr.Executor()
    feeds = [{"ids": ids, "labels": labels} for ids, labels in batches()]
    assert [executor.run(program, feed, [loss])[0].item() for feed in feeds] == losses
    for (key, parameter), (_, other) in zip(eager[0].named_parameters(), model.named_parameters(), strict=True):
        np.testing.assert_array_equal(parameter.data.view(np.uint8), other.data.view(np.uint8), err_msg=key)
    for key, state in eager[1].state_dict().items():
        np.testing.assert_array_equal(state, optimizer.state_dict()[key], err_msg=key)


def test_the_learning_rate_of_a_program_is_the_optimizers():
    program, model, optimizer, _ = record("compare_padding, unpadded")
    before = model.output.weight.data.copy()
    optimizer.lr = 0.0
    ids, labels = next(batches())
    vr.Executor().run(program, {"ids": ids, "labels": labels}, [])
    np.testing.assert_array_equal(model.output.weight.data, before)
