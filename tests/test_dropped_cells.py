"""Cells that nothing holds are freed; records, programs and layers hold their cells."""

import copy
import gc
import linecache
import pickle
import weakref
from collections import Counter

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.cells import cell, find_cell, sigmoid, tanh
from varlen_rnn.nn import Recurrent

RNG = np.random.default_rng(0)


def define(name):
    def leaky(a, b, /, h):
        return h + sigmoid(b) * (tanh(a) - h)

    return cell(leaky, name=name)


def layer(name):
    return Recurrent(define(name), 3, 2)


def rows():
    return vr.create_lod_tensor(RNG.standard_normal((5, 3)).astype(np.float32), [[2, 3]])


def objects():
    gc.collect()
    return Counter(type(one) for one in gc.get_objects())


def test_dropped_cells_leave_no_objects():
    for number in range(3):
        define(f"dropped_{number}")
    before, count = objects(), 20
    for number in range(3, 3 + count):
        define(f"dropped_{number}")
    left = objects() - before
    assert {kind: n for kind, n in left.items() if n >= count} == {}
    assert not any(name.startswith("<cell dropped_") for name in linecache.cache)


def test_a_cell_is_found_again_after_the_one_that_replaced_it_was_dropped():
    """Two calls of a function that builds a model define the same cell twice; the second model is dropped."""
    held = Recurrent(define("made_twice"), 3, 2)
    define("made_twice")
    gc.collect()
    assert find_cell("made_twice") is held.cell
    assert np.asarray(pickle.loads(pickle.dumps(held))(rows())[0]).shape == (5, 2)
    newest = define("made_twice")
    assert find_cell("made_twice") is newest


def test_a_cell_that_is_held_is_found():
    kept = define("held_one")
    gc.collect()
    assert find_cell("held_one") is kept
    assert pickle.loads(pickle.dumps(kept)) is kept
    assert type(pickle.loads(pickle.dumps(kept.name))) is str
    name = define("held_by_its_name").name
    gc.collect()
    assert find_cell(str(name)).name == "held_by_its_name"
    del kept
    gc.collect()
    with pytest.raises(vr.ProgramError, match="import the module that defines this cell"):
        find_cell("held_one")


def test_a_gradient_needs_neither_the_layer_nor_its_cell():
    x = vr.Variable(rows(), requires_grad=True)
    y, _ = layer("held_by_a_record")(x)
    gc.collect()
    y.sum().backward()
    assert x.grad.shape == (5, 3)


def record(cell_name):
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        y, _ = layer(cell_name)(x)
        y.sum().backward()
    return program, y.name


def test_a_program_holds_the_cells_that_it_names():
    program, name = record("held_by_a_program")
    gc.collect()
    (y,) = vr.Executor().run(program, {"x": rows()}, [name])
    pruned = program.prune([name])
    del program
    gc.collect()
    assert vr.Executor().run(pruned, {"x": rows()}, [name])[0].shape == y.shape == (5, 2)


COPIES = {
    "loaded": lambda program: vr.Program.from_bytes(program.to_bytes()),
    "pickled": lambda program: pickle.loads(pickle.dumps(program)),
    "copied": copy.deepcopy,
    "described": lambda program: vr.Program(vr.Program.from_bytes(program.to_bytes()).desc, program.persistables),
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_program_that_was_read_holds_its_cells(kind):
    program, name = record(f"held_by_a_program_{kind}")
    again = COPIES[kind](program)
    del program
    gc.collect()
    assert vr.Executor().run(again, {"x": rows()}, [name])[0].shape == (5, 2)


def test_no_cache_holds_a_cell_that_was_only_described():
    def described(name):
        program, _ = record(name)
        vr.Program.from_bytes(program.to_bytes())
        return weakref.ref(find_cell(name))

    held = described("described_once")
    gc.collect()
    assert held() is None


def test_the_name_of_a_dropped_cell_is_free():
    first = define("used_twice")

    def used_twice(a, /, h):
        return tanh(a) + h

    with pytest.raises(vr.ProgramError, match="got the name of another cell"):
        cell(used_twice)
    del first
    assert cell(used_twice).gates == ("a",)
    again = cell(used_twice)
    gc.collect()
    assert "tanh" in "".join(linecache.getlines("<cell used_twice>"))
    assert find_cell("used_twice") is again
