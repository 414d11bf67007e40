"""Operators along a sequence: each equals its oracle, whatever stands beside the sequence and however many threads."""

import itertools

import numpy as np
import pytest
from oracles import windows as oracle

import varlen_rnn as vr
from tests.test_kernels import by_features, by_number, by_trouble, check, values
from varlen_rnn.kernels import causal, softmax, windows
from varlen_rnn.ops.sequence import conv
from varlen_rnn.runtime import threads

by_direction = pytest.mark.parametrize("direction", [1, -1])
LENGTHS = [2, 0, 3, 60, 1, 0, 130]


def rows(lengths, *element, dtype=np.float64, seed=0):
    data = np.random.default_rng(seed).standard_normal((sum(lengths), *element)).astype(dtype)
    return vr.create_lod_tensor(data, [lengths])


def bytes_of_sequences(rows, lengths):
    ends = np.cumsum([0, *lengths])
    return [np.asarray(rows)[a:b].tobytes() for a, b in itertools.pairwise(ends)]


def check_that_sequences_stand_alone(function, element, of_result, dtype):
    """Assert that a sequence's rows and their gradients have the same bits alone, and whatever the order."""
    x, d = rows(LENGTHS, *element, dtype=dtype), rows(LENGTHS, *of_result, dtype=dtype, seed=1)

    def run(chosen):
        given, lengths = vr.Variable(x[chosen], requires_grad=True), [LENGTHS[i] for i in chosen]
        out = function(given)
        out.backward(d[chosen].data)
        return list(zip(*(bytes_of_sequences(a, lengths) for a in (out, given.grad.data)), strict=True))

    everyone = list(range(len(LENGTHS)))
    together = run(everyone)
    assert run(everyone[::-1])[::-1] == together
    assert [run([i])[0] for i in everyone] == together


# Softmax.


@pytest.mark.twins
@by_number
@by_features
@by_trouble
def test_softmax(device, dtype, features, offsets):
    x, y, d = (values((offsets[-1], features), dtype, seed) for seed in range(3))
    check(device, softmax.softmax, oracle.softmax, x * 9, np.array(offsets), y, exact=False)
    check(device, softmax.softmax_grad, oracle.softmax_grad, y, d, np.array(offsets), x, exact=False)


@pytest.mark.twins
@by_number
def test_softmax_of_long_sequences(device, dtype):
    """Of more rows than a block of the sum has."""
    offsets = np.array([0, 48, 97, 110])
    x, y, d = (values((110, 2), dtype, seed) for seed in range(3))
    check(device, softmax.softmax, oracle.softmax, x, offsets, y, exact=False)
    check(device, softmax.softmax_grad, oracle.softmax_grad, y, d, offsets, x, exact=False)


@by_number
@pytest.mark.parametrize("element", [(), (1,), (5,), (2, 3)], ids=str)
def test_the_softmax_of_a_sequence_stands_alone(element, dtype):
    check_that_sequences_stand_alone(vr.sequence_softmax, element, element, dtype)


@by_number
def test_softmax_at_the_edges(dtype):
    largest = np.finfo(dtype).max
    x = np.array([largest, largest, 3.0, -largest, 0.0, 5.0, np.inf, 1.0, np.nan, 2.0], dtype)
    y = np.asarray(vr.sequence_softmax(vr.create_lod_tensor(x, [[2, 1, 2, 1, 2, 2]])))
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, [0.5, 0.5, 1, 0, 1, 1, *[np.nan] * 4])


def test_softmax_is_over_the_last_level():
    x = vr.create_lod_tensor(np.zeros(5), [[2, 1], [2, 0, 3]])
    y = vr.sequence_softmax(x)
    np.testing.assert_allclose(y, [1 / 2] * 2 + [1 / 3] * 3, rtol=1e-15)
    assert y.lod() == x.lod()


@pytest.mark.parametrize("rank", [1, 2])
def test_softmax_equals_pytorch(rank):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    x, d = rows([4, 7], *[3] * (rank - 1)), rows([4, 7], *[3] * (rank - 1), seed=1)
    ours = vr.Variable(x, requires_grad=True)
    y = vr.sequence_softmax(ours)
    y.backward(d.data)
    for a, b in ((0, 4), (4, 11)):
        theirs = torch.tensor(x.data[a:b], requires_grad=True)
        theirs.softmax(0).backward(torch.tensor(d.data[a:b]))
        np.testing.assert_allclose(np.asarray(y)[a:b], theirs.softmax(0).detach(), atol=1e-12)
        np.testing.assert_allclose(ours.grad.data[a:b], theirs.grad, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), "sequence_softmax, x: expected at least one level"),
        (vr.create_lod_tensor(np.arange(3), [[3]]), "sequence_softmax, x: expected float32 or float64, got int64"),
    ],
)
def test_what_has_no_softmax(x, message):
    with pytest.raises(vr.InputError, match=message):
        vr.sequence_softmax(x)


# Convolution.

# filter_size, padding_start; the last windows are all before their row, all behind it, and longer than most sequences
WINDOWS = [(3, None), (1, 0), (2, 0), (2, -1), (3, -4), (2, 3), (9, -4)]
by_window = pytest.mark.parametrize(("taps", "start"), WINDOWS)


def weights(taps, features, filters, start, dtype=np.float64):
    """Return a weight, a bias, and rows of padding."""
    rng, start = np.random.default_rng(3), -(taps // 2) if start is None else start
    shapes = (taps * features, filters), (filters,), (max(0, -start) + max(0, start + taps - 1), features)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def sequences(x):
    return [x.data[a:b] for a, b in itertools.pairwise(x.lod()[-1])]


@by_window
@pytest.mark.parametrize("lengths", [LENGTHS, [0], [1, 1], [130], [3, 0, 2] * 30], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["zeros", "padding"])
@pytest.mark.parametrize("block", [conv._BLOCK, 100])
def test_convolution_equals_the_oracle(monkeypatch, block, padded, lengths, taps, start):
    monkeypatch.setattr(conv, "_BLOCK", block)
    x = rows(lengths, 4)
    weight, bias, padding = weights(taps, 4, 5, start)
    padding = padding if padded else None
    y = vr.sequence_conv(x, weight, bias, padding, filter_size=taps, padding_start=start)
    right = oracle.conv(sequences(x), weight, bias, -(taps // 2) if start is None else start, taps, padding)
    np.testing.assert_allclose(y, right, rtol=0, atol=1e-12 * max(1, np.abs(right).max(initial=0)))
    assert y.lod() == x.lod()


@by_number
@pytest.mark.parametrize(("taps", "start"), [(3, None), (9, -4)])
def test_the_convolution_of_a_sequence_stands_alone(taps, start, dtype):
    weight, bias, padding = weights(taps, 6, 17, start, dtype)

    def function(x):
        return vr.sequence_conv(x, weight, bias, padding, filter_size=taps, padding_start=start)

    check_that_sequences_stand_alone(function, (6,), (17,), dtype)


@pytest.mark.parametrize("lengths", [[700, 0, 300], [2, 1] * 400], ids=["long", "short"])
def test_convolution_does_not_depend_on_the_number_of_threads(monkeypatch, lengths):
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(conv, "_BLOCK", 5000)
    found = []
    for num_threads in (1, 2, 7):
        monkeypatch.setattr(threads, "get_num_threads", lambda num_threads=num_threads: num_threads)
        given = [vr.Variable(a, requires_grad=True) for a in (rows(lengths, 19), *weights(3, 19, 33, None))]
        y = vr.sequence_conv(*given)
        (y * y).sum().backward()
        found.append([np.asarray(a).tobytes() for a in (y, *(v.grad for v in given))])
    assert found[1] == found[2] == found[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_of_the_convolution_equal_pytorch(padded, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    lengths = [5, 1, 0, 40]
    given = [vr.Variable(a, requires_grad=True) for a in (rows(lengths, 4, dtype=dtype), *weights(3, 4, 5, -1, dtype))]
    y = vr.sequence_conv(*given[:3], given[3] if padded else None, padding_start=-1)
    d = rows(lengths, 5, dtype=dtype, seed=1).data
    y.backward(d)
    x, weight, bias, padding = (torch.tensor(np.asarray(v), requires_grad=True) for v in given)
    outside = padding if padded else torch.zeros_like(padding)
    kernel = weight.reshape(3, 4, 5).permute(2, 1, 0)
    theirs = [torch.cat([outside[:1], part, outside[1:]]) for part in x.split(lengths)]
    theirs = torch.cat([torch.nn.functional.conv1d(p.T[None], kernel, bias)[0].T for p in theirs if len(p) > 2])
    theirs.backward(torch.tensor(d))
    atol = 1e-9 if dtype is np.float64 else 2e-5
    np.testing.assert_allclose(y, theirs.detach(), atol=atol)
    for ours, tensor in zip(given[: 3 + padded], (x, weight, bias, padding), strict=False):
        np.testing.assert_allclose(np.asarray(ours.grad), tensor.grad, atol=atol)


def test_nan_stays_in_its_sequence():
    x = rows([4, 60, 3], 2)
    x.data[[3, 64]] = np.nan
    y = np.asarray(vr.sequence_conv(x, *weights(3, 2, 4, None)[:2]))
    assert np.isfinite(y[4:63]).all()


def test_the_layer_learns_its_padding():
    vr.manual_seed(0)
    layer = vr.nn.SequenceConv(3, 2, filter_size=4, padding_start=-2, trainable_padding=True, dtype=np.float64)
    assert repr(layer) == "SequenceConv(3, 2, filter_size=4, padding_start=-2, trainable_padding=True, bias=True)"
    assert {name: p.shape for name, p in layer.named_parameters()} == {
        "weight": (12, 2),
        "bias": (2,),
        "padding": (3, 3),
    }
    x, optimizer = rows(LENGTHS, 3), vr.optim.SGD(layer.parameters(), lr=0.1)
    target = np.asarray(layer(x)) + 1
    losses = []
    for _ in range(3):
        loss = vr.nn.functional.mse_loss(layer(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]
    assert np.abs(np.asarray(layer.padding)).min() > 0
    assert vr.nn.SequenceConv(3, 2, bias=False).state_dict().keys() == {"weight"}


X, W = rows([2, 1], 3), np.zeros((9, 2))
CONV_ERRORS = {
    "no LoD": ((X.data, W), {}, "x: expected at least one level"),
    "rank": ((rows([2, 1], 3, 1), W), {}, "x: expected rank 2"),
    "weight": ((X, W[:8]), {}, r"weight: expected \(filter_size \* features, filters\), with a filter_size of 3, got"),
    "features": ((X, W[:6]), {}, r"x: expected shape \(-1, 2\), got shape \(3, 3\)"),
    "bias": ((X, W, np.zeros(3)), {}, "bias: expected shape"),
    "padding": ((X, W, None, np.zeros((1, 3))), {}, r"padding: expected shape \(2, 3\)"),
    "filter_size": ((X, W), {"filter_size": 0}, "filter_size: expected at least 1, got 0"),
    "far": ((X, W), {"padding_start": 2**62}, "padding_start: expected -2147483648 to"),
    "types": ((X, W.astype(np.float32)), {}, "weight: expected float64, as x has, got float32"),
    "nothing": ((X, W[:, :0]), {}, "weight: expected"),
}


@pytest.mark.parametrize("name", CONV_ERRORS)
def test_what_has_no_convolution(name):
    given, constants, message = CONV_ERRORS[name]
    with pytest.raises(vr.InputError, match=f"^sequence_conv, {message}"):
        vr.sequence_conv(*given, **constants)


def test_a_window_that_is_far_away_reads_padding_alone():
    y = vr.sequence_conv(X, np.ones((3, 1)), filter_size=1, padding_start=-(2**31))
    np.testing.assert_array_equal(y, np.zeros((3, 1)))


# Lookahead.


@pytest.mark.twins
@by_number
@by_features
@by_trouble
@by_direction
def test_row_conv(device, direction, offsets, features, dtype):
    x, weight, out = (
        values((offsets[-1], features), dtype),
        values((3, features), dtype, 1),
        values((offsets[-1], features), dtype, 2),
    )
    check(device, windows.row_conv, oracle.row_conv_kernel, x, np.array(offsets), weight, direction, out, exact=False)


@pytest.mark.parametrize("context", [1, 2, 5, 100])
@pytest.mark.parametrize("lengths", [LENGTHS, [0], [1, 1], [130]], ids=str)
def test_lookahead_equals_the_oracle(lengths, context):
    x, weight = rows(lengths, 4), np.random.default_rng(1).standard_normal((context, 4))
    y = vr.row_conv(x, weight)
    np.testing.assert_allclose(y, oracle.row_conv(sequences(x), weight), rtol=0, atol=1e-12)
    assert y.lod() == x.lod()


@by_number
def test_the_lookahead_of_a_sequence_stands_alone(dtype):
    weight = np.random.default_rng(1).standard_normal((3, 5)).astype(dtype)
    check_that_sequences_stand_alone(lambda x: vr.row_conv(x, weight), (5,), (5,), dtype)


def test_the_gradient_of_a_lookahead_does_not_drift():
    count = 1_000_000
    weight = vr.Variable(np.zeros((2, 1), np.float32), requires_grad=True)
    x = vr.create_lod_tensor(np.full((count, 1), 0.1, np.float32), [[count // 2] * 2])
    vr.row_conv(x, weight).sum().backward()
    np.testing.assert_allclose(weight.grad.ravel(), 0.1 * np.array([count, count - 2]), rtol=1e-6)


def test_lookahead_equals_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    x, d = rows([5, 1, 9], 3), rows([5, 1, 9], 3, seed=1).data
    layer, ours = vr.nn.RowConv(3, 2, dtype=np.float64), vr.Variable(x, requires_grad=True)
    assert repr(layer) == "RowConv(3, 2)"
    y = layer(ours)
    y.backward(d)
    data, weight = (torch.tensor(np.asarray(v), requires_grad=True) for v in (x, layer.weight))
    parts = [torch.nn.functional.pad(part.T[None], (0, 2)) for part in data.split([5, 1, 9])]
    parts = [torch.nn.functional.conv1d(part, weight.T[:, None], groups=3)[0].T for part in parts]
    torch.cat(parts).backward(torch.tensor(d))
    np.testing.assert_allclose(y, torch.cat(parts).detach(), atol=1e-12)
    np.testing.assert_allclose(ours.grad.data, data.grad, atol=1e-12)
    np.testing.assert_allclose(layer.weight.grad, weight.grad, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (X.data, W[:2, :1], "x: expected at least one level"),
        (X, np.zeros((2, 2)), r"weight: expected shape \(-1, 3\)"),
        (X, np.zeros((0, 3)), "weight: expected at least one row"),
        (X, np.zeros(3), r"weight: expected shape \(-1, 3\)"),
        (rows([3], 1, 3), np.zeros((1, 3)), "x: expected rank 2"),
        (X, np.zeros((2, 3), np.float32), "weight: expected float64, as x"),
    ],
)
def test_what_has_no_lookahead(x, weight, message):
    with pytest.raises(vr.InputError, match=f"^row_conv, {message}"):
        vr.row_conv(x, weight)


# Causal convolutions, whose window is carried.


def causal_inputs(lengths, width, dtype=np.float64, channels=3):
    """Return rows, weights, biases and first windows, as Variables that require gradients."""
    rng = np.random.default_rng(width)
    shapes = (channels, width), (channels,), (len(lengths), width - 1, channels)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    return [vr.Variable(value, requires_grad=True) for value in (rows(lengths, channels, dtype=dtype), *arrays)]


def test_causal_convolutions_equal_the_oracle():
    for width, dtype in ((4, np.float32), (2, np.float64), (1, np.float64)):
        given = causal_inputs([2, 0, 3, 60, 1], width, dtype)
        x, *others = (np.asarray(value, np.float64) for value in given)
        wanted = oracle.causal_conv(np.split(x, [2, 2, 5, 65]), *others)
        for found, right in zip(vr.causal_conv(*given), wanted, strict=True):
            np.testing.assert_allclose(found, right, rtol=0, atol=1e-12 if dtype is np.float64 else 1e-5)


@pytest.mark.twins
def test_the_gradient_of_weights_of_causal_convolutions(device):
    """Of more rows than a block of the sum has."""
    d, x, state, out = (values(shape, np.float32, n) for n, shape in enumerate([(60, 2), (60, 2), (3, 2, 2), (3, 2)]))
    offsets, kernel = np.array([0, 1, 1, 60]), causal.causal_conv_weight_grad
    check(device, kernel, oracle.causal_conv_weight_grad, d, x, offsets, state, out, exact=False)


def test_a_causal_convolution_of_a_sequence_has_the_same_bits_in_pieces_and_on_threads():
    lengths, cut = [70, 3, 0, 1], 33
    x, weight, bias, state = causal_inputs(lengths, 4, np.float32, 40)

    def run(x, state):
        for value in (weight, bias):
            value.grad = None
        found = vr.causal_conv(x, weight, bias, state, "silu")
        sum((y * y).sum() for y in found).backward()
        return [np.asarray(y) for y in (*found, weight.grad, bias.grad)]

    whole = run(x, state)
    before = threads.get_num_threads()
    try:
        threads.set_num_threads(1 if before > 1 else 2)
        assert [a.tobytes() for a in run(x, state)] == [a.tobytes() for a in whole]
    finally:
        threads.set_num_threads(before)
    first, last = vr.causal_conv(vr.create_lod_tensor(x.numpy()[:cut], [[cut]]), weight, bias, state[:1], "silu")
    rest, last = vr.causal_conv(vr.create_lod_tensor(x.numpy()[cut:70], [[70 - cut]]), weight, bias, last, "silu")
    assert np.concatenate([first.numpy(), rest.numpy()]).tobytes() == whole[0][:70].tobytes()
    assert last.numpy().tobytes() == whole[1][:1].tobytes()
    alone, _ = vr.causal_conv(x.numpy()[70:71], weight, bias, state[1:2], "silu")  # rows without a LoD
    assert alone.numpy().tobytes() == whole[0][70:71].tobytes()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, W[:, :1]), r"weight: expected shape \(3, -1\)"),
        ((X, np.zeros((3, 0))), "weight: expected a width of at least one row"),
        ((X, np.zeros((3, 2)), np.zeros(2)), r"bias: expected shape \(3,\)"),
        ((X, np.zeros((3, 2)), None, np.zeros((1, 1, 3))), "state: expected 2 sequences, as x"),
        ((X, np.zeros((3, 2)), None, None, "relu"), "activation: expected one of 'silu' or 'swish'"),
    ],
)
def test_what_has_no_causal_convolution(given, message):
    with pytest.raises(vr.InputError, match=f"^causal_conv, {message}"):
        vr.causal_conv(*given)


# Running sums.


@pytest.mark.twins
@by_number
@by_features
@by_trouble
@by_direction
def test_running_sums(device, direction, offsets, features, dtype):
    x, out = values((offsets[-1], features), dtype), values((offsets[-1], features), dtype, 2)
    check(device, windows.cumsum, oracle.cumsum, x, np.array(offsets), direction, out, exact=False)


@pytest.mark.twins
@by_number
@by_direction
def test_running_sums_of_long_sequences(device, direction, dtype):
    """Of more rows than a block of the sum has."""
    x, out = values((110, 2), dtype), values((110, 2), dtype, 2)
    check(device, windows.cumsum, oracle.cumsum, x, np.array([0, 97, 110]), direction, out, exact=False)


@by_number
@pytest.mark.parametrize("reverse", [False, True])
def test_the_running_sums_of_a_sequence_stand_alone(reverse, dtype):
    check_that_sequences_stand_alone(lambda x: vr.sequence_cumsum(x, reverse), (2, 3), (2, 3), dtype)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_and_their_gradients_do_not_drift(reverse):
    count = 1_000_000
    x = vr.Variable(vr.create_lod_tensor(np.full(count, 0.1, np.float32), [[count]]), requires_grad=True)
    y = vr.sequence_cumsum(x, reverse)
    y.backward(x.value.data)
    right = np.arange(1, count + 1) * np.float64(np.float32(0.1))
    for found, order in ((np.asarray(y), -1 if reverse else 1), (x.grad.data, 1 if reverse else -1)):
        np.testing.assert_allclose(found[::order], right, rtol=1e-6)


def test_running_sums_of_what_is_infinite():
    x = vr.create_lod_tensor(np.r_[np.ones(50), np.inf, np.ones(99), -np.inf, np.ones(60)], [[211]])
    right = np.r_[np.arange(1.0, 51), np.full(100, np.inf), np.full(61, np.nan)]
    np.testing.assert_array_equal(vr.sequence_cumsum(x), right)


def test_running_sums_equal_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    x, d = rows([5, 1, 90], 3), rows([5, 1, 90], 3, seed=1).data
    ours, theirs = vr.Variable(x, requires_grad=True), torch.tensor(x.data, requires_grad=True)
    y = vr.sequence_cumsum(ours)
    y.backward(d)
    sums = torch.cat([part.cumsum(0) for part in theirs.split([5, 1, 90])])
    sums.backward(torch.tensor(d))
    np.testing.assert_allclose(y, sums.detach(), atol=1e-12)
    np.testing.assert_allclose(ours.grad.data, theirs.grad, atol=1e-12)


def test_what_has_no_running_sums():
    with pytest.raises(vr.LoDError, match="sequence_cumsum, x: expected at least one level"):
        vr.sequence_cumsum(np.zeros(3))
    with pytest.raises(vr.DTypeError, match="sequence_cumsum, x: expected float32 or float64"):
        vr.sequence_cumsum(vr.create_lod_tensor(np.arange(3), [[3]]))


# Images.

IMAGES = np.random.default_rng(2).standard_normal((2, 3, 5, 6))
FORMS = [  # as given, and in full
    ((2, 1, 0), ((2, 2), (1, 1), (0, 0, 0, 0))),
    (((3, 2), (2, 1), (1, 0)), ((3, 2), (2, 1), (1, 0, 1, 0))),
    (((3, 4), 3, (0, 1, 2, 3)), ((3, 4), (3, 3), (0, 1, 2, 3))),
    (((5, 6), (1, 9), 0), ((5, 6), (1, 9), (0, 0, 0, 0))),
]


@pytest.mark.parametrize(("given", "full"), FORMS, ids=str)
@by_number
def test_windows_of_images_equal_the_oracle(dtype, given, full):
    images = IMAGES.astype(dtype)
    y, right = vr.im2sequence(images, *given), oracle.im2sequence(images, *full)
    np.testing.assert_array_equal(y, np.concatenate(right))
    assert y.value.recursive_sequence_lengths() == [[len(windows) for windows in right]]
    assert y.dtype == dtype


@pytest.mark.parametrize(("given", "full"), FORMS[:3], ids=str)
def test_windows_of_images_equal_pytorch(given, full):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    ours, theirs = vr.Variable(IMAGES, requires_grad=True), torch.tensor(IMAGES, requires_grad=True)
    y = vr.im2sequence(ours, *given)
    size, stride, (up, left, down, right) = full
    unfolded = torch.nn.functional.unfold(torch.nn.functional.pad(theirs, (left, right, up, down)), size, stride=stride)
    d = np.random.default_rng(0).standard_normal(y.shape)
    y.backward(d)
    unfolded.transpose(1, 2).reshape(y.shape).backward(torch.tensor(d))
    np.testing.assert_allclose(y, unfolded.detach().transpose(1, 2).reshape(y.shape))
    np.testing.assert_allclose(ours.grad, theirs.grad, atol=1e-12)


def test_images_may_have_levels():
    pages = vr.create_lod_tensor(IMAGES, [[0, 2]])
    y = vr.im2sequence(pages, (5, 1))
    assert y.lod() == [[0, 0, 2], [0, 6, 12]]
    assert vr.im2sequence(IMAGES[:0], 2).lod() == [[0]]
    assert vr.im2sequence(IMAGES[:0], 2).shape == (0, 12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((IMAGES[0], 2), "x: expected rank 4"),
        ((IMAGES, 6), "filter_size: expected at most 5, the image's size, got 6"),
        ((IMAGES, (1, 2, 3)), "filter_size: expected an integer, or 2 of them"),
        ((IMAGES, 0), "filter_size: expected 2 numbers of at least 1"),
        ((IMAGES, 2, 0), "stride: expected 2 numbers of at least 1"),
        ((IMAGES, 2, 1, 2), "padding: expected less than 2, the filter_size, got 2"),
        ((IMAGES, 2, 1, -1), "padding: expected 4 numbers of at least 0"),
        ((IMAGES, 2, 1, (1, 1, 1)), "padding: expected an integer, or 2 or 4 of them"),
        ((IMAGES.astype(int), 2), "x: expected float32 or float64"),
    ],
)
def test_what_has_no_windows(given, message):
    with pytest.raises(vr.InputError, match=f"^im2sequence, {message}"):
        vr.im2sequence(*given)


def test_a_gradient_of_other_windows_is_an_error():
    constants = {"filter_size": (2, 2), "stride": (1, 1), "padding": (0, 0, 0, 0)}
    with pytest.raises(vr.ShapeError, match="im2sequence_grad, d_out: expected shape"):
        vr.tape.variable.apply(
            "im2sequence_grad", IMAGES, vr.create_lod_tensor(np.zeros((3, 12)), [[1, 2]]), **constants
        )
