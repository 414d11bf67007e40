"""Values cross a pipe as bytes; a program is cut into parts that run in other processes."""

import json

import numpy as np
import pytest
import safetensors.numpy

import varlen_rnn as vr

VALUES = {
    "rows": vr.create_lod_tensor(np.arange(6.0).reshape(6, 1)[::-1], [[1, 2], [2, 0, 4]]),
    "no sequences": vr.create_lod_tensor(np.empty((0, 2), np.float32), [[]]),
    "number": np.array(2, np.int64),
    "a/slash": np.ones((2, 2), np.float16).T,
    "sparse": vr.SelectedRows([3, 1, 3], np.ones((3, 2)), 5),
    "plan": vr.sort_by_seq_len([0, 1, 4]),
}


def test_values_come_back_as_they_were():
    back = vr.values_from_bytes(vr.values_to_bytes(VALUES))
    assert list(back) == list(VALUES)
    for name, value in VALUES.items():
        assert type(back[name]) is type(value)
        assert repr(back[name]) == repr(value)
    assert back["rows"].lod() == VALUES["rows"].lod()
    np.testing.assert_array_equal(back["rows"], VALUES["rows"])
    np.testing.assert_array_equal(back["a/slash"], VALUES["a/slash"])
    np.testing.assert_array_equal(back["sparse"].to_dense(), VALUES["sparse"].to_dense())


def test_damaged_values_are_errors():
    payload = vr.values_to_bytes(VALUES)
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(payload[: rng.integers(1, len(payload) + 1)])
        for place in rng.integers(0, len(damaged), 3):
            damaged[place] = rng.integers(256)
        try:
            vr.values_from_bytes(bytes(damaged))
        except vr.InputError:
            pass
    with pytest.raises(vr.ProgramError, match="expected the bytes of values_to_bytes"):
        vr.values_from_bytes(b"")
    with pytest.raises(vr.DTypeError, match="value 'x': expected a LoDTensor"):
        vr.values_to_bytes({"x": [1, 2]})
    with pytest.raises(vr.DTypeError, match="values, names"):
        vr.values_to_bytes({1: np.ones(1), "1": np.ones(1)})  # JSON would write one name, and lose a value


def program():
    with vr.program_guard() as recorded:
        x = vr.feed_data("x", [-1, 3], "float64", lod_level=1)
        h, (h_n, _) = vr.nn.LSTM(3, 2, dtype=np.float64)(x)
        y = vr.sequence_pool(h, "sum") + h_n[0]
        y.name = "y"
    return recorded, h


def test_a_plan_and_rows_are_handed_over():
    recorded, h = program()
    x = vr.create_lod_tensor(np.random.default_rng(0).random((5, 3)), [[2, 3]])
    first, second = recorded.split(at=[h])
    handed = dict(zip(first.fetch_names, vr.Executor().run(first, {"x": x}), strict=True))
    handed = vr.values_from_bytes(vr.values_to_bytes(handed))
    (wanted,) = vr.Executor().run(recorded, {"x": x}, ["y"])
    np.testing.assert_array_equal(vr.Executor().run(second, handed, ["y"])[0], wanted)


@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("y", "split, at: expected a list"),
        (["x"], "expected a variable that an operator computes"),
        (["nothing"], "split, at, entry 0: expected a variable of the program"),
        (["y", "recurrent.y"], "expected variables in the order of their computation"),
    ],
)
def test_cuts_that_cannot_be(at, error):
    with pytest.raises(vr.ProgramError, match=error):
        program()[0].split(at=at)


def payload(kind, *arrays, name="p"):
    header = {"format": "varlen_rnn values 1", "kinds": json.dumps({name: kind})}
    return safetensors.numpy.save({f"{name}/{k}": np.asarray(array) for k, array in enumerate(arrays)}, header)


def test_values_of_a_stranger():
    rows, value = np.array([0]), np.ones((1, 1))
    for height in (np.nan, np.inf, 2.7, [1, 2]):
        with pytest.raises(vr.InputError):
            vr.values_from_bytes(payload("selected_rows", rows, value, height))
    content = bytearray(payload("array", np.array([True, False])))
    content[-1] = 7
    with pytest.raises(vr.ProgramError, match="a bool that is neither 0 nor 1"):
        vr.values_from_bytes(bytes(content))
    # A plan of more steps than fit in memory is read; no rows are of this plan.
    plan = vr.values_from_bytes(payload("sorted_seqs", [0, 10**14]))["p"]
    with pytest.raises(vr.ShapeError, match="rows of the plan"):
        vr.segment_inputs(np.ones((3, 1)), plan, 0)
