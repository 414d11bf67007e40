"""Additive attention over LoD: against NumPy, differences and PyTorch, and the laws of batch mates and threads."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from tests.in_threads import on_threads
from tests.oracles.attention import attend_additively
from tests.test_attention import LENGTHS, by_window
from varlen_rnn import attention
from varlen_rnn.nn import functional as F


def drawn(lengths, features=5, columns=3, dtype=np.float64):
    """Return queries, keys, values and a weight as Variables that require gradients."""
    rng, (of_q, of_k) = np.random.default_rng(0), lengths
    rows = [(of_q, features), (of_k, features), (of_k, columns)]
    given = [vr.create_lod_tensor(rng.standard_normal((sum(of), n)).astype(dtype), [of]) for of, n in rows]
    return [vr.Variable(x, requires_grad=True) for x in (*given, rng.standard_normal(features).astype(dtype))]


def wanted(q, k, v, weight, window):
    return attend_additively(*map(np.asarray, (q, k, v, weight)), q.lod()[0], k.lod()[0], *window)


@by_window
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("features", [1, 5, 40])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 5e-6)], ids=["float64", "float32"])
def test_equals_the_oracle(lengths, window, features, dtype, tolerance):
    given = drawn(lengths, features, dtype=dtype)
    y = F.additive_attention(*given, window=window)
    assert y.dtype == dtype
    assert y.lod() == given[0].lod()
    np.testing.assert_allclose(np.asarray(y), wanted(*given, window), rtol=tolerance, atol=tolerance)


@by_window
@pytest.mark.parametrize("lengths", [LENGTHS["empty ones"], ([97, 3], [200, 1])], ids=["empty ones", "blocks"])
def test_gradients_are_central_differences(lengths, window):
    given, rng = drawn(lengths), np.random.default_rng(1)
    d = rng.standard_normal((sum(lengths[0]), 3))
    (F.additive_attention(*given, window=window) * d).sum().backward()
    for number, x in enumerate(given):
        flat, d_flat = x.value.data.reshape(-1), np.asarray(x.grad).reshape(-1)
        for at in rng.permutation(flat.size)[:12]:
            difference = slope(lambda: (wanted(*given, window) * d).sum(), flat, at=at)
            np.testing.assert_allclose(d_flat[at], difference, rtol=1e-7, atol=1e-8, err_msg=number)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_depend_on_neither_batch_mates_nor_threads(dtype):
    lengths = [7, 100, 30], [250, 64, 1]

    def step():
        given = drawn(lengths, 20, 6, dtype)
        y = F.additive_attention(*given, window=(40, 60))
        (y * y).sum().backward()
        return y, *(x.grad for x in given)

    found = on_threads(step)
    q, k, v, weight = drawn(lengths, 20, 6, dtype)
    alone = [x.value.slice(0, 1, 2) for x in (q, k, v)]
    mine = [vr.Variable(x, requires_grad=True) for x in alone]
    y = F.additive_attention(*mine, weight, window=(40, 60))
    (y * y).sum().backward()
    for x, whole, of in zip((y, *(x.grad for x in mine)), found, (q, q, k, v), strict=False):
        begin, end = of.lod()[0][1:3]
        np.testing.assert_array_equal(np.asarray(x), whole[begin:end])


def test_large_scores_and_infinite_ones():
    q, k, v, weight = drawn(([3], [5]))
    y = F.additive_attention(q * 1e6, k, v, weight.detach() * 1e4)
    scores = np.tanh(np.asarray(q)[:, None] * 1e6 + np.asarray(k)) @ (np.asarray(weight) * 1e4)
    best = scores == scores.max(axis=1, keepdims=True)
    np.testing.assert_allclose(np.asarray(y), best / best.sum(axis=1, keepdims=True) @ np.asarray(v), rtol=1e-12)


def test_as_pytorch_padded():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    lengths = [3, 1, 6], [4, 2, 5]
    given = drawn(lengths)
    y = F.additive_attention(*given)
    (y * y).sum().backward()
    theirs = [torch.tensor(np.asarray(x), requires_grad=True) for x in given]
    total = 0
    for (a, b), (c, d) in zip(*([*zip(x.lod()[0], x.lod()[0][1:], strict=False)] for x in given[:2]), strict=True):
        q, k, v, weight = theirs[0][a:b], theirs[1][c:d], theirs[2][c:d], theirs[3]
        found = torch.softmax(torch.tanh(q[:, None] + k) @ weight, dim=-1) @ v
        np.testing.assert_allclose(np.asarray(y)[a:b], found.detach().numpy(), rtol=1e-9)
        total = total + (found * found).sum()
    total.backward()
    for x, other in zip(given, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(x.grad), other.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_the_layer_in_a_program_and_from_its_file(tmp_path):
    vr.manual_seed(0)
    layer = vr.nn.AdditiveAttention(4, 6, 5, dtype=np.float64)
    names = {name for name, _ in layer.named_parameters()}
    assert names == {"query_proj.weight", "query_proj.bias", "key_proj.weight", "weight"}
    rng = np.random.default_rng(0)
    q = vr.create_lod_tensor(rng.standard_normal((6, 4)), [[2, 0, 4]])
    k = vr.create_lod_tensor(rng.standard_normal((7, 6)), [[3, 1, 3]])
    y = layer(q, k, is_causal=True)
    with vr.program_guard() as program:
        rows = [vr.feed_data(name, [-1, n], "float64", lod_level=1) for name, n in (("q", 4), ("k", 6))]
        out = layer(*rows, is_causal=True)
    program.save(tmp_path / "attention")
    for one in (program, vr.Program.load(tmp_path / "attention")):
        (found,) = vr.Executor().run(one, {"q": q, "k": k}, [out.name])
        np.testing.assert_array_equal(np.asarray(found), np.asarray(y))
        assert found.lod() == q.lod()


def test_what_does_not_fit_is_told():
    q, k, v, weight = drawn(([2, 1], [1, 2]))
    with pytest.raises(vr.ShapeError, match="key: expected 5 features, as query has, got 3"):
        F.additive_attention(q, v, v, weight)
    with pytest.raises(vr.ShapeError, match="weight: expected 5 features"):
        F.additive_attention(q, k, v, np.ones(4))
    with pytest.raises(vr.LoDError, match="additive_attention, key: expected 2 sequences"):
        F.additive_attention(q, k.with_lod([[0, 3]]), v, weight)
    with pytest.raises(vr.ShapeError, match="additive_attention, value: expected 3 rows"):
        F.additive_attention(q, k, np.ones((2, 3)), weight)


@pytest.mark.twins
@pytest.mark.parametrize("window", [(None, None), (None, 0), (3, 2), (-2, 5)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_on_every_device(device, window, dtype, tolerance):
    lengths = LENGTHS["empty ones"]
    given = drawn(lengths, dtype=dtype)
    arrays = [device.put(np.asarray(x)) for x in given]
    ends = [np.asarray(x.lod()[0]) for x in given[:2]]
    limits = [attention.UNLIMITED if limit is None else limit for limit in window]
    call = attention.Call(*ends, 1, 1.0, *limits, weight=arrays[3])
    out, sums = attention.forward(*arrays[:3], call)
    d = np.random.default_rng(1).standard_normal((sum(lengths[0]), 3)).astype(dtype)
    found = attention.backward(*arrays[:3], out, sums, device.put(d), call)
    np.testing.assert_allclose(device.get(out), wanted(*given, window), rtol=tolerance, atol=tolerance)
    exact = [np.asarray(x, np.float64) for x in given]
    for of, mine in zip(exact, map(device.get, found), strict=True):
        for at in np.ndindex(of.shape):
            difference = slope(lambda: (attend_additively(*exact, *ends, *window) * d).sum(), of, at=at)
            np.testing.assert_allclose(mine[at], difference, rtol=1e-4, atol=1e-5)


@pytest.mark.twins
def test_the_scale_multiplies_scores_on_every_device(device):
    given = drawn(LENGTHS["empty ones"])
    *arrays, weight = [device.put(np.asarray(x)) for x in given]
    ends = [np.asarray(x.lod()[0]) for x in given[:2]]
    double = device.put(2 * np.asarray(given[3]))
    found = attention.forward(*arrays, attention.Call(*ends, 1, 2.0, weight=weight))
    for mine, wanted_one in zip(
        found, attention.forward(*arrays, attention.Call(*ends, 1, 1.0, weight=double)), strict=True
    ):
        np.testing.assert_array_equal(device.get(mine), device.get(wanted_one))
