"""Layer normalisation: the oracle, PyTorch's layer, and rows that stand alone."""

import numpy as np
import pytest
from oracles import windows as oracle

import varlen_rnn as vr
from tests.test_kernels import by_number, check, values
from varlen_rnn.kernels import norms
from varlen_rnn.nn import functional as F

RNG = np.random.default_rng(0)


@pytest.mark.twins
@by_number
@pytest.mark.parametrize("features", [1, 3, 16, 37])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_kernels(device, count, features, dtype):
    x, d, out = (values((count, features), dtype, seed) for seed in range(3))
    weight, bias = values(features, dtype, 3), values(features, dtype, 4)
    for centres in (True, False):
        check(device, norms.layer_norm, oracle.layer_norm, x, weight, bias, 0.1, centres, out, exact=False)
        check(device, norms.layer_norm_grad, oracle.layer_norm_grad, x, weight, d, 0.1, centres, out, exact=False)


def test_rms_norm_equals_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    x, gate, d, weight = (RNG.standard_normal(shape) for shape in [(4, 3, 17)] * 3 + [(17,)])
    layer = vr.nn.RMSNorm(17, 0.1, dtype=np.float64)
    layer.load_state_dict({"weight": weight})
    given = [vr.Variable(array, requires_grad=True) for array in (x, gate)]
    y = layer(*given)
    y.backward(d)
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, gate, weight)]
    normal = torch.nn.functional.rms_norm(tensors[0], (17,), tensors[2], 0.1) * torch.nn.functional.silu(tensors[1])
    normal.backward(torch.tensor(d))
    np.testing.assert_allclose(y, normal.detach(), atol=1e-12)
    for mine, theirs in zip([*given, layer.weight], tensors, strict=True):
        np.testing.assert_allclose(mine.grad, theirs.grad, atol=1e-12)
    assert repr(layer) == "RMSNorm(17, eps=0.1, elementwise_affine=True)"
    assert vr.nn.RMSNorm(17, elementwise_affine=False).weight is None


@by_number
@pytest.mark.parametrize("affine", [(True, True), (True, False), (False, False)], ids=str)
@pytest.mark.parametrize("shape", [(9, 37), (4, 3, 16), (5, 1), (7,)], ids=str)
def test_the_layer_equals_pytorch(shape, affine, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    theirs = torch.nn.LayerNorm(shape[-1], 0.1, affine[0], affine[1], dtype=getattr(torch, dtype.__name__))
    for p in theirs.parameters():
        torch.nn.init.normal_(p)
    ours = vr.nn.LayerNorm(shape[-1], 0.1, affine[0], affine[1], dtype=dtype)
    ours.load_state_dict({name: tensor.numpy() for name, tensor in theirs.state_dict().items()})
    x, d = ((RNG.standard_normal(shape) + 2).astype(dtype) for _ in range(2))
    given, tensor = vr.Variable(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y = ours(given)
    y.backward(d)
    right = theirs(tensor)
    right.backward(torch.tensor(d))
    pairs = [(y, right.detach()), (given.grad, tensor.grad)]
    pairs += [(dict(ours.named_parameters())[name].grad, p.grad) for name, p in theirs.named_parameters()]
    assert len(pairs) == 2 + sum(affine)
    for found, wanted in pairs:
        scale = max(1, np.abs(wanted.numpy()).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=(1e-9 if dtype is np.float64 else 1e-5) * scale)


@by_number
def test_rows_stand_alone(dtype):
    x = RNG.standard_normal((9, 37)).astype(dtype)
    together = np.asarray(F.layer_norm(x))
    for t in range(9):
        assert np.asarray(F.layer_norm(x[t : t + 1])).tobytes() == together[t].tobytes()


def test_the_lod_is_kept_and_levels_have_no_meaning():
    x = vr.create_lod_tensor(RNG.standard_normal((5, 3)), [[2, 1], [2, 0, 3]])
    assert F.layer_norm(x).lod() == x.lod()
    np.testing.assert_array_equal(F.layer_norm(x), F.layer_norm(x.data))


@by_number
def test_a_large_mean_does_not_hide_the_deviations(dtype):
    x = np.array([[1, 2, 3, 4]], dtype) + dtype(1000)
    np.testing.assert_allclose(F.layer_norm(x, eps=0), [np.array([-3, -1, 1, 3]) / np.sqrt(5)], rtol=1e-6)


def test_equal_features_are_zeros():
    np.testing.assert_array_equal(F.layer_norm(np.full((2, 5), 7.0)), np.zeros((2, 5)))


def test_the_gradient_of_a_weight_does_not_drift():
    count = 1_000_000
    weight = vr.Variable(np.ones(2, np.float32), requires_grad=True)
    F.layer_norm(np.tile(np.array([[-1, 1]], np.float32), (count, 1)), weight, eps=0).backward(
        np.full((count, 2), 0.1, np.float32)
    )
    np.testing.assert_allclose(weight.grad, [-count * 0.1, count * 0.1], rtol=1e-6)


def test_the_layer():
    layer = vr.nn.LayerNorm(3)
    assert repr(layer) == "LayerNorm(3, eps=1e-05, elementwise_affine=True, bias=True)"
    assert {name: np.asarray(p).tolist() for name, p in layer.named_parameters()} == {
        "weight": [1] * 3,
        "bias": [0] * 3,
    }
    assert vr.nn.LayerNorm(3, bias=False).bias is None
    assert list(vr.nn.LayerNorm(3, elementwise_affine=False).parameters()) == []


@pytest.mark.parametrize(
    ("given", "constants", "message"),
    [
        ((np.zeros((2, 0)),), {}, "x: expected at least one feature"),
        ((np.zeros(()),), {}, "x: expected at least one feature"),
        ((np.zeros((2, 3)), np.zeros(2)), {}, r"weight: expected shape \(3,\)"),
        ((np.zeros((2, 3)), None, np.zeros((1, 3))), {}, r"bias: expected shape \(3,\)"),
        ((np.zeros((2, 3)), np.zeros(3, np.float32)), {}, "weight: expected float64, as x"),
        ((np.zeros((2, 3), int),), {}, "x: expected float32 or float64"),
        ((np.zeros((2, 3)),), {"eps": -1.0}, "eps: expected at least 0"),
        ((np.zeros((2, 3)),), {"eps": np.nan}, "eps: expected at least 0"),
    ],
)
def test_what_is_not_normalised(given, constants, message):
    with pytest.raises(vr.InputError, match=f"^layer_norm, {message}"):
        F.layer_norm(*given, **constants)
