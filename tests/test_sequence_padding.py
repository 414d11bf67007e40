"""Sequences side by side with padding, and back: every row where the oracle has it, at any level and data type."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import windows as oracle

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

LENGTHS = [2, 0, 3, 1, 0]
RNG = np.random.default_rng(0)


def rows(lengths, *element, dtype=np.float64):
    return vr.create_lod_tensor((RNG.standard_normal((sum(lengths), *element)) * 9).astype(dtype), [lengths])


def sequences(x):
    return [x.data[a:b] for a, b in itertools.pairwise(x.lod()[-1])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("element", [(), (3,), (2, 2), (0,)], ids=str)
@pytest.mark.parametrize("maxlen", [None, 3, 5])
def test_padding_equals_the_oracle_and_comes_back(maxlen, element, dtype):
    x = rows(LENGTHS, *element, dtype=dtype)
    out, length = vr.sequence_pad(x, pad_value=1.0, maxlen=maxlen)
    np.testing.assert_array_equal(out, oracle.pad(sequences(x), 1, maxlen or 3))
    assert out.dtype == dtype
    assert np.asarray(length).tolist() == LENGTHS
    assert length.dtype == np.int64
    back = vr.sequence_unpad(out, length)
    assert back.lod() == x.lod()
    assert np.asarray(back).tobytes() == x.data.tobytes()


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 3))
def test_unpadding_equals_the_oracle(lengths, more):
    x = np.arange(len(lengths) * (max(lengths) + more) * 2).reshape(len(lengths), -1, 2)
    y = vr.sequence_unpad(x, np.array(lengths, np.int32))
    np.testing.assert_array_equal(y, np.concatenate(oracle.unpad(x, lengths)))
    assert y.value.recursive_sequence_lengths() == [lengths]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_nothing_is_padded(lengths):
    out, length = vr.sequence_pad(rows(lengths, 3))
    assert out.shape == (len(lengths), 0, 3)
    assert np.asarray(length).tolist() == lengths
    assert vr.sequence_unpad(out, length).lod() == [np.cumsum([0, *lengths]).tolist()]
    out, _ = vr.sequence_pad(rows(lengths, 3), -1.0, maxlen=2)
    np.testing.assert_array_equal(out, np.full((len(lengths), 2, 3), -1.0))


def test_upper_levels_are_kept():
    x = vr.create_lod_tensor(np.arange(5.0), [[2, 0, 1], [2, 0, 3]])
    out, length = vr.sequence_pad(x)
    assert out.lod() == length.lod() == [[0, 2, 2, 3]]
    assert vr.sequence_unpad(out, length).lod() == vr.sequence_unpad(out, np.array([2, 0, 3])).lod() == x.lod()
    other = vr.create_lod_tensor(np.array([2, 0, 3]), [[3]])
    with pytest.raises(vr.LoDError, match="x has lengths"):
        vr.sequence_unpad(out, other)


def test_gradients_pass_to_rows_alone():
    x = vr.Variable(rows(LENGTHS, 2), requires_grad=True)
    out, length = vr.sequence_pad(x, pad_value=7.0)
    d_out = np.arange(float(np.prod(out.shape))).reshape(out.shape)
    (out * d_out).sum().backward()
    np.testing.assert_array_equal(x.grad.data, np.concatenate(oracle.unpad(d_out, LENGTHS)))
    padded = vr.Variable(np.full((5, 4, 2), np.nan), requires_grad=True)
    vr.sequence_unpad(padded, length.detach()).sum().backward()
    np.testing.assert_array_equal(padded.grad[..., 0], oracle.mask(LENGTHS, 4))


def test_a_padded_batch_runs_through_a_layer():
    vr.manual_seed(0)
    layer, x = vr.nn.GRU(3, 4, dtype=np.float64), rows(LENGTHS, 3)
    padded, lengths = vr.sequence_pad(x)
    with pytest.raises(vr.ShapeError, match=r"for a padded batch, sequence_unpad\(x, lengths\)"):
        layer(padded)
    y, h_n = layer(vr.sequence_unpad(padded, lengths))
    np.testing.assert_array_equal(y, layer(x)[0])
    np.testing.assert_array_equal(h_n, layer(x)[1])


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("maxlen", [None, 0, 2, 5])
@pytest.mark.parametrize("of", [np.int32, np.int64, np.uint8])
def test_masks_equal_the_oracle(of, maxlen, dtype):
    mask = vr.sequence_mask(np.array(LENGTHS, of), maxlen, dtype)
    steps = 3 if maxlen is None else maxlen
    np.testing.assert_array_equal(mask, oracle.mask(LENGTHS, steps).reshape(5, steps))
    assert mask.dtype == dtype
    assert vr.sequence_mask(np.zeros((2, 0), of), maxlen).shape == (2, 0, maxlen or 0)


def test_a_mask_keeps_the_lod_of_its_lengths():
    lengths = vr.create_lod_tensor(np.array([1, 2]), [[2]])
    assert vr.sequence_mask(lengths).lod() == [[0, 2]]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e300, 0.5, -1.0, 256.0])
def test_the_padding_is_a_number_that_the_data_type_holds(number):
    for dtype in (np.float64, np.float32, np.int32, np.uint8):
        held = dtype is np.float64 or (dtype is np.float32 and number != 1e300)
        held = held or (dtype is np.int32 and number in (-1.0, 256.0))
        if held:
            out, _ = vr.sequence_pad(rows([1], dtype=dtype), number, maxlen=2)
            np.testing.assert_array_equal(np.asarray(out)[0, 1], dtype(number))
        else:
            with pytest.raises(vr.ShapeError, match="pad_value: expected a number that"):
                vr.sequence_pad(rows([1], dtype=dtype), number, maxlen=2)


ERRORS = {
    "longer than maxlen": (lambda: vr.sequence_pad(rows(LENGTHS), maxlen=2), "at least 3, the longest sequence, got 2"),
    "maxlen below 0": (lambda: vr.sequence_pad(rows(LENGTHS), maxlen=-1), "sequence_pad, maxlen: expected 0 to"),
    "maxlen of all memory": (lambda: vr.sequence_pad(rows(LENGTHS), maxlen=2**60), "sequence_pad, maxlen: expected 0"),
    "no LoD": (lambda: vr.sequence_pad(np.zeros((2, 3))), "sequence_pad, x: expected at least one level"),
    "half": (lambda: vr.sequence_pad(rows([1], dtype=np.float16)), "sequence_pad, x: expected any data type except"),
    "a length beyond the steps": (
        lambda: vr.sequence_unpad(np.zeros((2, 3)), np.array([3, 4])),
        "sequence_unpad, length, entry 1: expected 0 to 3, x's number of steps, got 4",
    ),
    "a negative length": (lambda: vr.sequence_unpad(np.zeros((1, 3)), np.array([-1])), "entry 0: expected 0 to 3"),
    "other lengths": (lambda: vr.sequence_unpad(np.zeros((2, 3)), np.array([1])), "length: expected shape"),
    "lengths that are floats": (lambda: vr.sequence_unpad(np.zeros((1, 3)), np.ones(1)), "length: expected integers"),
    "no steps": (lambda: vr.sequence_unpad(np.zeros(3), np.arange(3)), r"x: expected \(sequences, steps, ...\)"),
    "a mask below 0": (lambda: vr.sequence_mask(np.array([1, -2])), "lengths, entry 1: expected at least 0, got -2"),
    "a mask of all memory": (lambda: vr.sequence_mask(np.array([2**60])), "sequence_mask, maxlen: expected 0 to"),
    "a mask of texts": (lambda: vr.sequence_mask(np.array([1]), dtype="U1"), "sequence_mask, dtype: expected one of"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_is_wrong(name):
    call, message = ERRORS[name]
    with pytest.raises(vr.InputError, match=message):
        call()


def test_a_gradient_of_another_shape_reaches_no_kernel():
    x = vr.Variable(rows(LENGTHS, 2), requires_grad=True)
    out, _ = vr.sequence_pad(x)
    for op, inputs, constants in (
        ("sequence_pad_grad", [x, np.ones((5, 2, 2))], {"pad_value": 0.0, "maxlen": None}),
        ("sequence_unpad_grad", [out, np.array(LENGTHS), rows([1], 2)], {}),
    ):
        with pytest.raises(vr.InputError, match=f"{op}, d_out: expected shape"):
            vr.tape.variable.apply(op, *inputs, **constants)


def test_masked_steps_do_not_count():
    x = vr.Variable(rows(LENGTHS, 3), requires_grad=True)
    out, length = vr.sequence_pad(F.tanh(x))
    mask = vr.sequence_mask(length, dtype="float64").reshape(5, 3, 1)
    np.testing.assert_allclose((out * mask).sum(axis=1), vr.sequence_pool(F.tanh(x), "sum"), atol=1e-12)
