"""Memory that waits for the next array: who gets it, when, and how much of it waits at most."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.runtime import memory

MIB = 2**20


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch):
    monkeypatch.setattr(memory, "_owned", set())  # other tests may hold large arrays
    monkeypatch.setattr(memory, "_waiting", [])
    monkeypatch.setattr(memory, "LEAST_COUNTED", 0)


def large(size, dtype=np.uint8):
    dtype = np.dtype(dtype)
    return memory.array((size // dtype.itemsize,), dtype, size)


def address_of(array):
    return array.__array_interface__["data"][0]


def waiting():
    return sum(lender.memory.size for lender in memory._waiting)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_an_array_begins_at_a_cache_line_and_is_ordinary(dtype):
    array = memory.array((3, 1000), np.dtype(dtype), 3000 * np.dtype(dtype).itemsize)
    assert address_of(array) % 64 == 0
    assert array.shape == (3, 1000)
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 7
    assert array.sum() == 21_000
    array.flags.writeable = False
    array.flags.writeable = True


def test_memory_is_used_again_once_the_last_view_is_gone():
    array = large(MIB)
    address, view = address_of(array), array[5:].reshape(-1, 1)[::2].view(np.int8)
    del array
    assert address_of(large(MIB)) != address
    vr.release_memory()
    del view
    assert waiting() == MIB
    assert address_of(large(MIB)) == address


def test_a_view_that_outlives_its_array_keeps_its_values():
    view = large(MIB)[10:20]
    view[...] = 3
    others = [large(MIB) for _ in range(4)]
    for other in others:
        other[...] = 9
    assert view.tolist() == [3] * 10


@pytest.mark.parametrize(("size", "again"), [(MIB, True), (MIB - 1, True), (MIB // 2, True), (MIB // 2 - 1, False)])
def test_smaller_arrays_get_it_down_to_half_its_size(size, again):
    address = address_of(large(MIB))
    assert (address_of(large(size)) == address) == again


def test_a_little_more_than_asked_for_serves_growing_batches():
    address = address_of(large(MIB + 1))
    assert address_of(large(MIB + MIB // 8)) == address


def test_of_those_that_fit_the_smallest_is_taken():
    sizes = [2 * MIB, MIB, MIB + MIB // 2]
    arrays = [large(size) for size in sizes]
    addresses = [address_of(array) for array in arrays]
    del arrays
    assert address_of(large(MIB)) == addresses[1]


def test_of_two_equal_ones_the_last_that_was_let_go_is_taken():
    arrays = [large(MIB), large(MIB)]
    addresses = [address_of(array) for array in arrays]
    del arrays[0], arrays[0]
    assert address_of(large(MIB)) == addresses[1]


def test_what_waits_longest_goes_first(monkeypatch):
    monkeypatch.setattr(memory, "MOST_OWNED", 4 * MIB)
    arrays = [large(size * MIB) for size in (1, 2, 1)]
    addresses = [address_of(array) for array in arrays]
    while arrays:
        del arrays[0]
    assert waiting() == 4 * MIB
    array = large(MIB // 4)
    assert [address_of(np.frombuffer(lender.memory.buffer)) + lender.memory.start for lender in memory._waiting] == (
        addresses[1:]
    )
    assert array.size == MIB // 4


def test_arrays_beyond_the_most_that_is_owned_go_back_when_freed(monkeypatch):
    monkeypatch.setattr(memory, "MOST_OWNED", 3 * MIB)
    lent, waits = large(2 * MIB), large(MIB)
    del waits
    array = large(8 * MIB)
    assert address_of(array) % 64 == 0
    array[...] = 1
    del array
    assert waiting() == MIB  # nothing went for what has no room anyway
    del lent
    assert waiting() == 3 * MIB


def test_many_small_arrays_count_as_more_than_they_are(monkeypatch):
    monkeypatch.setattr(memory, "LEAST_COUNTED", MIB)
    monkeypatch.setattr(memory, "MOST_OWNED", 4 * MIB)
    arrays = [large(65_536) for _ in range(9)]
    arrays.clear()
    assert len(memory._waiting) == 4


def test_an_interrupt_between_two_steps_loses_nothing(monkeypatch):
    address, owned = address_of(large(MIB)), memory._owned

    class Interrupted(set):
        def discard(self, lender):
            owned.discard(lender)
            raise KeyboardInterrupt

    monkeypatch.setattr(memory, "_owned", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        large(MIB)
    monkeypatch.setattr(memory, "_owned", owned)
    assert address_of(large(MIB)) == address


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_owns_nothing_of_its_parent():
    lent, waits = large(MIB), large(MIB)
    del waits
    child = os.fork()
    if not child:
        os._exit(len(memory._owned) + len(memory._waiting))
    assert os.waitpid(child, 0)[1] == 0
    assert waiting() == MIB
    assert lent.size == MIB


def test_release_gives_all_back():
    large(MIB)
    vr.release_memory()
    assert waiting() == 0


def test_threads_never_share_memory():
    def fill(number):
        for _ in range(200):
            array = large(65_536, np.int64)
            array[...] = number
            assert (array == number).all()
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(fill, range(8)))


def test_a_second_step_of_training_takes_no_new_memory(monkeypatch):
    layer, made = vr.nn.LSTM(64, 64), []
    x = vr.Variable(vr.create_lod_tensor(np.ones((600, 64), np.float32), [[200, 300, 100]]), requires_grad=True)
    d_y = np.ones((600, 64), np.float32)

    def step():
        layer(x)[0].backward(d_y)
        for leaf in (x, *layer.parameters()):
            leaf.grad = None

    make = memory._Memory
    monkeypatch.setattr(memory, "_Memory", lambda size: made.append(size) or make(size))
    step()
    first = len(made)
    step()
    assert first > 0
    assert len(made) == first
