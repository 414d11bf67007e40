"""Attention over LoD: against NumPy, differences and PyTorch, and the laws of batch mates and threads."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from tests.in_threads import on_threads
from tests.oracles.attention import attend, attend_grad, attention_weights
from varlen_rnn import attention
from varlen_rnn.nn import functional as F
from varlen_rnn.tape.variable import apply

LENGTHS = {
    "empty ones": ([3, 0, 5, 1, 0], [4, 2, 0, 7, 0]),
    "several blocks": ([97, 200], [192, 385]),
    "more than a piece of work": ([400, 1], [30, 3]),
    "no sequences": ([], []),
    "no rows": ([0, 0], [0, 0]),
}
WINDOWS = {"all": (None, None), "causal": (None, 0), "narrow": (3, 2), "of the future": (-2, 5), "none": (0, -1)}
SIZES = [(1, 5, 3), (2, 16, 33)]
WEIGHT = np.array([1.0, -2.0, 0.5, 3.0])
by_lengths = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
by_window = pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)


def drawn(lengths, size, dtype=np.float64, seed=0):
    """Return queries, keys and values as Variables that require gradients."""
    rng, (heads, depth, depth_v) = np.random.default_rng(seed), size
    of_q, of_k = lengths
    shapes = (of_q, depth), (of_k, depth), (of_k, depth_v)
    return [
        vr.Variable(
            vr.create_lod_tensor(rng.standard_normal((sum(of), heads, width)).astype(dtype), [of]), requires_grad=True
        )
        for of, width in shapes
    ]


def offsets(x):
    return x.lod()[0]


@by_lengths
@by_window
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-6)], ids=["float64", "float32"])
def test_equals_the_oracle(lengths, window, size, dtype, tolerance):
    q, k, v = drawn(lengths, size, dtype)
    y = F.scaled_dot_product_attention(q, k, v, window=window)
    wanted = attend(np.asarray(q), np.asarray(k), np.asarray(v), offsets(q), offsets(k), None, *window)
    assert y.dtype == dtype
    assert y.lod() == q.lod()
    np.testing.assert_allclose(np.asarray(y), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", [LENGTHS["empty ones"], ([97, 3], [200, 1])], ids=["empty ones", "blocks"])
@by_window
def test_gradients_are_central_differences(lengths, window):
    given = drawn(lengths, (2, 5, 3))
    d = np.random.default_rng(1).standard_normal((sum(lengths[0]), 2, 3))

    def loss():
        return (F.scaled_dot_product_attention(*given, scale=0.7, window=window) * d).sum()

    loss().backward()
    for x in given:
        way = np.random.default_rng(2).standard_normal(x.shape)
        difference = slope(loss, x.value.data, way)
        np.testing.assert_allclose((np.asarray(x.grad) * way).sum(), difference, rtol=1e-7, atol=1e-7)


def step_of(given, window=(None, None)):
    """Return the bits of a training step."""
    given = [vr.Variable(x.value, requires_grad=True) for x in given]
    y = F.scaled_dot_product_attention(*given, window=window)
    (y * y).sum().backward()
    return [np.asarray(y), *(np.asarray(x.grad) for x in given)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_mates_and_their_order_change_no_bit(dtype):
    q_lengths, k_lengths = [130, 0, 7, 450], [200, 3, 9, 250]
    given = drawn((q_lengths, k_lengths), (2, 20, 11), dtype)
    whole = step_of(given)
    for i in range(4):
        alone = [
            vr.Variable(vr.create_lod_tensor(rows, [[len(rows)]]))
            for rows in (np.asarray(x)[offsets(x)[i] : offsets(x)[i + 1]] for x in given)
        ]
        for mine, all_rows, x in zip(step_of(alone), whole, (given[0], *given), strict=True):
            np.testing.assert_array_equal(mine, all_rows[offsets(x)[i] : offsets(x)[i + 1]])


def test_threads_change_no_bit():
    given = drawn(([300, 40, 900], [250, 60, 700]), (3, 32, 32), np.float32)
    on_threads(lambda: step_of(given, (None, 0)))


def test_large_scores_do_not_overflow():
    q, k, v = drawn(([200], [400]), (1, 8, 4))
    y = np.asarray(F.scaled_dot_product_attention(q, k, v, scale=1e4))
    best = (np.asarray(q)[:, 0] @ np.asarray(k)[:, 0].T).argmax(axis=1)
    np.testing.assert_allclose(y[:, 0], np.asarray(v)[best, 0], rtol=1e-12)


def test_nan_stays_with_the_queries_that_see_it():
    q, k, v = drawn(([5, 5], [5, 5]), (1, 4, 4))
    k.value.data[7] = np.nan
    y = np.asarray(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert not np.isnan(y[:7]).any()
    assert np.isnan(y[7:]).all()


def test_queries_without_keys_are_zeros():
    q, k, v = drawn(([3, 2], [0, 2]), (1, 4, 4))
    assert (np.asarray(F.scaled_dot_product_attention(q, k, v))[:3] == 0).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_is_that_of_pytorch_sequence_by_sequence(is_causal):
    torch = pytest.importorskip("torch")
    given = drawn(([130, 1, 40], [130, 1, 40]), (3, 16, 16))
    y = F.scaled_dot_product_attention(*given, is_causal=is_causal)
    (y * y).sum().backward()
    for begin, end in zip(offsets(given[0]), offsets(given[0])[1:], strict=False):
        theirs = [torch.tensor(np.asarray(x)[begin:end].swapaxes(0, 1), requires_grad=True) for x in given]
        out = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=is_causal)
        (out * out).sum().backward()
        np.testing.assert_allclose(np.asarray(y)[begin:end], out.detach().numpy().swapaxes(0, 1), rtol=1e-9, atol=1e-12)
        for x, other in zip(given, theirs, strict=True):
            wanted = other.grad.numpy().swapaxes(0, 1)
            np.testing.assert_allclose(np.asarray(x.grad)[begin:end], wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 10}, {"bias": False}], ids=str)
def test_several_heads_are_those_of_pytorch(sizes):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.MultiheadAttention(8, 2, dtype=torch.float64, batch_first=True, **sizes)
    ours = vr.nn.MultiheadAttention(8, 2, dtype=np.float64, **sizes)
    ours.load_state_dict({name: value.detach().numpy() for name, value in theirs.state_dict().items()})
    rng, lengths = np.random.default_rng(0), ([4, 3], [5, 2])
    widths = 8, sizes.get("kdim", 8), sizes.get("vdim", 8)
    rows = [rng.standard_normal((sum(lengths[n > 0]), width)) for n, width in enumerate(widths)]
    y = ours(*(vr.create_lod_tensor(x, [lengths[n > 0]]) for n, x in enumerate(rows)))
    ends = [np.cumsum([0, *of]) for of in lengths]
    for i in range(2):
        parts = [torch.tensor(x[ends[n > 0][i] : ends[n > 0][i + 1]])[None] for n, x in enumerate(rows)]
        wanted, _ = theirs(*parts)
        np.testing.assert_allclose(np.asarray(y)[ends[0][i] : ends[0][i + 1]], wanted[0].detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("is_causal", [False, True])
def test_weights_are_those_of_pytorch(is_causal):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.MultiheadAttention(8, 2, dtype=torch.float64, batch_first=True)
    ours = vr.nn.MultiheadAttention(8, 2, dtype=np.float64)
    ours.load_state_dict({name: value.detach().numpy() for name, value in theirs.state_dict().items()})
    rng, lengths = np.random.default_rng(0), ([4, 0, 3, 2], [5, 2, 2, 0])
    query, key = (vr.create_lod_tensor(rng.standard_normal((sum(of), 8)), [of]) for of in lengths)
    query, key = vr.Variable(query, requires_grad=True), vr.Variable(key, requires_grad=True)
    output, weights = ours(query, key, key, is_causal=is_causal, need_weights=True)
    assert np.array_equal(output, ours(query, key, key, is_causal=is_causal))
    assert weights.value.recursive_sequence_lengths() == [[4, 0, 3, 2], [5] * 4 + [2] * 3 + [0] * 2]
    found = [np.array(sequence) for sequence in weights.value.to_sequences()]
    factor, at = rng.standard_normal(weights.shape), 0
    (weights * factor).sum().backward()
    for i in (0, 2):
        parts = [torch.tensor(v.value[i].data[None], requires_grad=True) for v in (query, key)]
        mask = torch.ones(lengths[0][i], lengths[1][i], dtype=bool).triu(1) if is_causal else None
        _, wanted = theirs(parts[0], parts[1], parts[1], attn_mask=mask)
        np.testing.assert_allclose(found[i], wanted[0].detach().numpy(), rtol=1e-12)
        (wanted.ravel() * torch.tensor(factor[at : at + wanted.numel()])).sum().backward()
        at += wanted.numel()
        for ours_d, part in zip((query.grad, key.grad), parts, strict=True):
            np.testing.assert_allclose(ours_d[i].data, part.grad[0].numpy(), rtol=1e-9, atol=1e-12)


def test_weights_of_a_program_and_of_what_sees_nothing():
    layer = vr.nn.MultiheadAttention(4, 2, dtype=np.float64)
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, 4)), [[2, 1], [1, 3, 2]])
    y, weights = layer(x, x, x, window=(0, -1), need_weights=True)
    assert not weights.numpy().any()
    assert weights.lod() == [[0, 2, 3], [0, 1, 4, 6], [0, 1, 4, 7, 10, 12, 14]]
    y, weights = layer(x, x, x, need_weights=True)
    with vr.program_guard() as program:
        found = layer(*[vr.feed_data("x", [-1, 4], "float64", lod_level=2)] * 3, need_weights=True)
    for value, wanted in zip(vr.Executor().run(program, {"x": x}, [*found]), (y, weights), strict=True):
        np.testing.assert_allclose(value.data, wanted, rtol=1e-14)
        assert value.lod() == wanted.lod()


def test_weights_of_a_query_do_not_depend_on_others():
    layer, rng = vr.nn.MultiheadAttention(16, 4), np.random.default_rng(0)
    sequences = [rng.standard_normal((length, 16)).astype(np.float32) for length in (7, 0, 30, 1)]
    x = vr.LoDTensor.from_sequences(sequences)
    together = layer(x, x, x, need_weights=True)[1].numpy()
    alone = [layer(one, one, one, need_weights=True)[1].numpy() for one in (x[[k]] for k in range(4))]
    assert np.array_equal(together, np.concatenate(alone))


def test_queries_without_a_lod_are_one_per_sequence():
    """As the states of a recurrence, whose step attends to the words of a sentence."""
    q, k, v = drawn(([1, 1, 1], [3, 0, 4]), (2, 5, 3))
    wanted = F.scaled_dot_product_attention(q, k, v)
    got = F.scaled_dot_product_attention(np.asarray(q), k, v)
    assert got.lod() == []
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, 4)), [[2, 1], [1, 3, 2]])

    def step(sentence, h):
        h = (
            h * 0.5
            + F.scaled_dot_product_attention(h, sentence, sentence)
            + F.additive_attention(h, sentence, sentence, WEIGHT)
        )
        return h, h

    y, _ = vr.nn.DynamicRNN(step, level=0)(x, [np.ones((2, 4))])
    rows, h = np.asarray(x), np.ones((2, 4))
    for sentence, document, (begin, end) in ((0, 0, (0, 1)), (1, 0, (1, 4)), (2, 1, (4, 6))):
        words = rows[begin:end]
        scores = words @ h[document] / 2, np.tanh(words + h[document]) @ WEIGHT
        shares = [np.exp(score) / np.exp(score).sum() for score in scores]
        h[document] = h[document] * 0.5 + sum(shares) @ words
        np.testing.assert_allclose(np.asarray(y)[sentence], h[document], rtol=1e-12)
    with pytest.raises(vr.LoDError, match="key: expected 2 sequences, as many as query has, got 3"):
        F.scaled_dot_product_attention(np.asarray(q)[:2], k, v)


def test_self_attention_in_one_product_is_that_in_three():
    layer = vr.nn.MultiheadAttention(8, 2, dtype=np.float64)
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((5, 8)), [[2, 3]])
    one, other = vr.Variable(x), vr.Variable(x)
    np.testing.assert_allclose(np.asarray(layer(one, one, one)), np.asarray(layer(one, other, one)), rtol=1e-12)


X = vr.create_lod_tensor(np.ones((5, 2, 4)), [[2, 3]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, np.ones((5, 2, 4)), X), "key: expected at least one level"),
        ((X, vr.create_lod_tensor(np.ones((5, 2, 4)), [[5]]), X), "key: expected 2 sequences, as many as query"),
        ((X, X, vr.create_lod_tensor(np.ones((5, 2, 4)), [[3, 2]])), "value: expected sequences of the same lengths"),
        ((X, vr.create_lod_tensor(np.ones((5, 2, 3)), [[2, 3]]), X), r"key: expected rows of shape \(2, 4\), as query"),
        ((X, X, np.ones((4, 2, 4))), "value: expected 5 rows"),
        ((X, X, np.ones((5, 4))), "or all of shape"),
        ((X, X, np.ones((5, 2, 4), np.float32)), "float"),
    ],
)
def test_errors_say_what_is_wrong(given, message):
    with pytest.raises(vr.InputError, match=message):
        F.scaled_dot_product_attention(*given)


def test_constants_are_checked():
    with pytest.raises(vr.InputError, match="scale"):
        F.scaled_dot_product_attention(X, X, X, scale=float("inf"))
    with pytest.raises(vr.InputError, match="left"):
        F.scaled_dot_product_attention(X, X, X, window=(2**60, None))
    for window in (3, (1,), ("a", None), (1.5, None)):
        with pytest.raises(vr.InputError, match="window"):
            F.scaled_dot_product_attention(X, X, X, window=window)
    with pytest.raises(vr.ShapeError, match="embed_dim: expected a multiple of num_heads=3"):
        vr.nn.MultiheadAttention(8, 3)


@pytest.mark.twins
@pytest.mark.parametrize("window", [(None, None), (None, 0), (3, 2), (-2, 5)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_on_every_device(device, window, dtype, tolerance):
    rng, heads, lengths = np.random.default_rng(0), 2, LENGTHS["empty ones"]
    ends = [np.cumsum([0, *of]) for of in lengths]
    q, k, v, d_out = (rng.standard_normal((ends[n][-1], heads, width)) for n, width in ((0, 5), (1, 5), (1, 3), (0, 3)))
    flat = [device.put(x.reshape(len(x), -1).astype(dtype)) for x in (q, k, v, d_out)]
    limits = [attention.UNLIMITED if limit is None else limit for limit in window]
    constants = *ends, heads, 0.5, *limits
    out, sums = attention.forward(*flat[:3], attention.Call(*constants))
    found = out, *attention.backward(*flat[:3], out, sums, flat[3], attention.Call(*constants))
    wanted = attend(q, k, v, *ends, 0.5, *window), *attend_grad(q, k, v, d_out, *ends, 0.5, *window)
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(device.get(mine), right.reshape(len(right), -1), rtol=tolerance, atol=tolerance)


@pytest.mark.twins
@pytest.mark.parametrize("lengths", [LENGTHS["empty ones"], ([60, 1], [3, 70]), ([], [])], ids=str)
@pytest.mark.parametrize("window", [(None, None), (None, 0), (3, 2), (0, -1)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-6)], ids=["float64", "float32"])
def test_weights_on_every_device(device, lengths, window, dtype, tolerance):
    rng, ends = np.random.default_rng(0), [np.cumsum([0, *of]) for of in lengths]
    q, k = (rng.standard_normal((end[-1], 2, 5)).astype(dtype) for end in ends)
    given = [
        vr.Variable(vr.LoDTensor(device.put(x), [end]), requires_grad=True) for x, end in zip((q, k), ends, strict=True)
    ]
    found = apply("attention_weights", *given, left=window[0], right=window[1])
    wanted = attention_weights(q.astype(np.float64), k.astype(np.float64), *ends, *window)
    np.testing.assert_allclose(device.get(found.value.data), wanted, rtol=tolerance, atol=tolerance)
    assert found.lod()[0] == list(ends[0])
    d = rng.standard_normal(found.shape)
    found.backward(gradient=device.put(d.astype(dtype)))
    exact = q.astype(np.float64), k.astype(np.float64)
    d_sum = lambda: (attention_weights(*exact, *ends, *window) * d).sum()
    for x, array in zip(given, exact, strict=True):
        mine = device.get(x.grad.data)
        for at in [*np.ndindex(x.shape)][::7]:
            np.testing.assert_allclose(mine[at], slope(d_sum, array, at=at), rtol=1e-4, atol=2e-5)


@pytest.mark.twins
def test_weights_of_scores_that_are_not_finite_on_every_device(device):
    q, k = np.array([[[1.0]], [[np.nan]], [[1.0]]]), np.array([[[np.inf]], [[1.0]], [[2.0]]])
    x, y = (vr.LoDTensor(device.put(array), [[0, 3]]) for array in (q, k))
    found = device.get(apply("attention_weights", x, y, left=0, right=None).value.data)
    np.testing.assert_array_equal(found[:, 0], [np.nan, 0, 0, np.nan, np.nan, np.nan, 0, 0, 1])


@pytest.mark.twins
@pytest.mark.parametrize("additive", [False, True], ids=["dot", "additive"])
@pytest.mark.parametrize("size", [1e6, 1e7, 1e8, 1e9])
def test_weights_of_large_scores_sum_to_one(device, size, additive):
    """With gradients of one, the gradients of values are sums of weights: one per query, in the gradient pass too."""
    rng, queries, keys = np.random.default_rng(0), 20, 30
    k = (1 + rng.integers(0, 4, (keys, 3)) * 2.0**-23).astype(np.float32)  # scores that differ by a few roundings
    q, v = np.ones((queries, 3), np.float32), np.ones((keys, 1), np.float32)
    weight = np.full(3, size, np.float32) if additive else None
    q, k, v, d_out = (
        device.put(x) for x in (q if additive else q * np.float32(size), k, v, np.ones((queries, 1), np.float32))
    )
    weight = weight if weight is None else device.put(weight)
    given = np.array([0, queries]), np.array([0, keys]), 1, 1.0 if additive else 0.3
    out, sums = attention.forward(q, k, v, attention.Call(*given, weight=weight))
    d_v = attention.backward(q, k, v, out, sums, d_out, attention.Call(*given, weight=weight))[2]
    np.testing.assert_allclose(device.get(out), 1, rtol=1e-5)
    np.testing.assert_allclose(device.get(d_v).sum(dtype=np.float64), queries, rtol=1e-5)
