"""The executor checks what it is given before it runs anything, and lets values go after their last reader."""

import gc
import weakref

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.tape import operator


@pytest.fixture
def program():
    vr.manual_seed(0)
    model = vr.nn.Linear(3, 2)
    with vr.program_guard() as recorded:
        y = model(vr.feed_data("x", [-1, 3], "float32", lod_level=1))
        y.name = "y"
        vr.optim.SGD(model.parameters(), lr=0.5).minimize(y.sum())
    recorded.model = model
    return recorded


def rows(*lengths, dtype=np.float32, width=3):
    return vr.create_lod_tensor(np.ones((sum(lengths), width), dtype), [list(lengths)])


@pytest.mark.parametrize(
    ("feed", "fetches", "error"),
    [
        ({}, ["y"], r"feed: expected a value for \['x'\], got none"),
        (None, ["y"], "expected a value for"),
        ([rows(2)], ["y"], "feed: expected a dict of name to value, got list"),
        ({"x": rows(2), "z": rows(2)}, ["y"], r"feed: expected only \['x'\], got unknown \['z'\]"),
        ({"x": np.ones((2, 3), np.float32)}, ["y"], "feed 'x': expected 1 level, got 0 .give the rows their lengths"),
        ({"x": rows(2, dtype=np.float64)}, ["y"], "feed 'x': expected float32, got float64"),
        ({"x": rows(2, width=4)}, ["y"], r"feed 'x': expected shape \[-1, 3\], got \[2, 4\]"),
        ({"x": vr.SelectedRows([0], np.ones((1, 3), np.float32), 2)}, ["y"], "expected a LOD_TENSOR, got a SELECTED"),
        ({"x": "rows"}, ["y"], "data"),
        ({"x": object()}, ["y"], "data"),
        ({"x": rows(2)}, ["z"], "fetch_list, entry 0: expected a variable of the program, or its name, got 'z'"),
        ({"x": rows(2)}, ["weight@GRAF"], "is it 'weight@GRAD'"),
        ({"x": rows(2)}, "y", "fetch_list: expected a list"),
        ({"x": rows(2)}, [3], "fetch_list, entry 0"),
    ],
)
def test_nothing_runs_before_all_is_checked(program, feed, fetches, error):
    before = program.model.state_dict()
    with pytest.raises(vr.InputError, match=error):
        vr.Executor().run(program, feed, fetches)
    for name, value in program.model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    with pytest.raises(vr.DTypeError, match="run, program: expected a Program"):
        vr.Executor().run(program.desc, feed, fetches)


def test_it_runs_again_and_fetches_what_it_is_asked_for(program):
    executor = vr.Executor()
    assert executor.run(program, {"x": rows(2)}) == []
    first, weight = executor.run(program, {"x": rows(1, 0)}, ["y", "weight"])
    assert first.lod() == [[0, 1, 1]]
    kept = weight.copy()
    second, gradient = executor.run(program, {"x": rows(3)}, ["y", "weight@GRAD"])
    assert second.shape == (3, 2)
    assert isinstance(gradient, np.ndarray)
    np.testing.assert_array_equal(weight, kept, "a fetched parameter is a copy")
    np.testing.assert_array_equal(program.persistables["weight"].data, program.model.weight.data)


def test_a_program_that_grows_runs_as_it_is(program):
    feed = {"x": rows(2)}
    vr.Executor().run(program, feed, ["y"])
    with vr.program_guard(program):
        twice = vr.feed_data("z", [-1], "float32") * 2.0
    np.testing.assert_array_equal(vr.Executor().run(program, feed | {"z": np.ones(1, np.float32)}, [twice])[0], [2.0])


def test_values_are_let_go_after_their_last_reader(monkeypatch):
    alive, most = [], []

    def watched(x):
        gc.collect()
        alive.append(weakref.ref(x.data))
        most.append(sum(reference() is not None for reference in alive))
        return x.data + 1

    monkeypatch.setattr(operator, "OPERATORS", dict(operator.OPERATORS))
    watched = vr.operator(watched)
    watched.infer(lambda x: x)
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1], "float64")
        for _ in range(6):
            x = watched(x)
    vr.Executor().run(program, {"x": np.zeros(2)}, [x])
    assert max(most) <= 2, "the feed, and the input of the operator"


def test_what_eager_code_refuses_a_run_refuses_too():
    with vr.program_guard() as program:
        loss = vr.nn.functional.mse_loss(vr.feed_data("x", [-1, 1], "float32"), vr.feed_data("y", [-1, 1], "float32"))
    with pytest.raises(vr.ShapeError, match="mse_loss, target"):
        vr.Executor().run(program, {"x": np.ones((5, 1), np.float32), "y": np.zeros((1, 1), np.float32)}, [loss])


def test_programs_of_something_else():
    for wrong in ("x", 3, b"", {}):
        with pytest.raises(vr.DTypeError, match="Program, desc: expected a ProgramDesc"):
            vr.Program(wrong)
    with pytest.raises(vr.DTypeError, match="Program, persistables: expected a dict"):
        vr.Program(vr.ProgramDesc(), 3)
    with pytest.raises(TypeError):
        vr.Program().persistables["w"] = np.ones(1)


def test_an_error_inside_of_a_run_names_its_operator():
    with vr.program_guard() as program:
        y = vr.feed_data("x", [-1, 3], "float64").reshape(2, 3)
    with pytest.raises(vr.ShapeError, match="reshape: expected a shape of 3 elements"):
        vr.Executor().run(program, {"x": np.ones((1, 3))}, [y])


def test_what_a_layer_kept_and_handed_over_is_not_overwritten():
    with vr.program_guard() as program:
        layer = vr.nn.LSTM(2, 3)
        y, _ = layer(vr.feed_data("x", [-1, 2], "float32", lod_level=1))
        y.sum().backward()
    first, second = program.split(at=[y])
    feed = {"x": vr.create_lod_tensor(np.random.default_rng(0).random((5, 2), np.float32), [[2, 3]])}
    handed = dict(zip(first.fetch_names, vr.Executor().run(first, feed), strict=True)) | feed
    handed = {name: handed[name] for name in second.feed_names}
    once, twice = (vr.Executor().run(second, handed, ["weight_hh_l0@GRAD"])[0] for _ in range(2))
    np.testing.assert_array_equal(once, twice)


def test_what_is_fetched_is_the_callers_own(program):
    with vr.program_guard(program):
        flat = program.model.weight.reshape(6)
        a, b = (vr.feed_data(name, [2], "float32", requires_grad=True) for name in "ab")
        (a + b).sum().backward()
    feed = {"x": rows(2), "a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    fetched = vr.Executor().run(program, feed, [flat, "a@GRAD", "b@GRAD", "a", "a"])
    before = [array.copy() for array in fetched]
    assert not any(np.shares_memory(x, y) for k, x in enumerate(fetched) for y in (*fetched[:k], *feed.values()))
    vr.Executor().run(program, feed)
    for array, kept in zip(fetched, before, strict=True):
        np.testing.assert_array_equal(array, kept)


def test_a_variable_is_no_list_of_fetches_and_belongs_to_its_program(program):
    with vr.program_guard() as other:
        x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        total = x.sum()
    for one in (x, total):
        with pytest.raises(vr.ProgramError, match="fetch_list: expected a list"):
            vr.Executor().run(other, {"x": rows(2)}, one)
        with pytest.raises(vr.ProgramError, match="split, at: expected a list"):
            other.split(at=one)
    assert program.desc.blocks[0].var(total.name), "another of this name"
    for use in (lambda: vr.Executor().run(program, {"x": rows(2)}, [total]), lambda: program.prune([total])):
        with pytest.raises(vr.ProgramError, match="entry 0: expected a variable of this program, got 'reduce_sum' of"):
            use()
    (part, *_) = other.split(at=[total])
    np.testing.assert_array_equal(vr.Executor().run(part, {"x": rows(2)}, [total])[0], 6)


def test_a_run_trains_whatever_an_optimizer_updates():
    weight = vr.Variable(np.ones(2, np.float32), requires_grad=True)
    optimizer = vr.optim.Momentum([weight], lr=1.0)
    with vr.program_guard() as program:
        optimizer.minimize((weight * vr.feed_data("x", [2], "float32")).sum())
    feed = {"x": np.ones(2, np.float32)}
    vr.Executor().run(program, feed)
    np.testing.assert_array_equal(weight, [0, 0])
    state = optimizer.state_dict()
    vr.Executor().run(program, feed)
    wanted = np.asarray(weight)
    weight.value.data[:] = 0
    optimizer.load_state_dict(state)
    vr.Executor().run(program, feed)
    np.testing.assert_array_equal(weight, wanted, "a program goes on from the states that were loaded")
