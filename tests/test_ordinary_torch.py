"""Ordinary operators beside PyTorch's: values, gradients, and what of a gradient each of two equal numbers gets."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
theirs_F = torch.nn.functional

RNG = np.random.default_rng(0)
TIES = RNG.integers(-1, 2, (2, 5, 4)).astype(np.float64)
DENSE = RNG.standard_normal((2, 5, 4))

# name: (our function, theirs, values)
CASES = {
    "maximum": (F.maximum, torch.maximum, TIES),
    "minimum": (F.minimum, torch.minimum, TIES),
    "abs": (F.abs, torch.abs, TIES[:1]),
    "silu": (F.silu, theirs_F.silu, DENSE[:1]),
    "gelu": (F.gelu, theirs_F.gelu, DENSE[:1]),
    "gelu by tanh": (
        lambda x: F.gelu(x, approximate="tanh"), lambda x: theirs_F.gelu(x, approximate="tanh"), DENSE[:1]
    ),
    **{
        f"{name} of {kind}": (getattr(F, name), getattr(theirs_F, name.replace("log_s", "logs")), values)
        for name in ("softplus", "leaky_relu", "elu", "log_sigmoid")
        for kind, values in (("ties", TIES[:1]), ("large numbers", 30 * DENSE[:1]))
    },
    "softplus of a slope": (lambda x: F.softplus(x, 2.0, 1.0), lambda x: theirs_F.softplus(x, 2.0, 1.0), DENSE[:1]),
    "elu and leaky_relu of slopes": (
        lambda x: F.elu(x, -0.5) * F.leaky_relu(x, 0.3), lambda x: theirs_F.elu(x, -0.5) * theirs_F.leaky_relu(x, 0.3),
        TIES[:1],
    ),
    **{
        f"normalize by {p} of {kind}": (
            lambda x, p=p: F.normalize(x, p), lambda x, p=p: theirs_F.normalize(x, p), values,
        )
        for p in (1.0, 2.0, 3.5, np.inf)
        for kind, values in (("numbers", DENSE[:1]), ("zeros", np.zeros((1, 5, 4))))
    },
    "cosine_similarity": (F.cosine_similarity, theirs_F.cosine_similarity, DENSE),
    "cosine_similarity of rows and zeros": (
        lambda x, y: F.cosine_similarity(x, y, axis=0), lambda x, y: theirs_F.cosine_similarity(x, y, dim=0),
        DENSE * [[[1.0]], [[0.0]]],
    ),
    "max and min of an axis": (
        lambda x: x.max(axis=1) * x.min(axis=1), lambda x: x.amax(1) * x.amin(1), TIES[:1]
    ),
    "max and min": (lambda x: x.max() * x.min(), lambda x: x.max() * x.min(), TIES[:1]),
    "std of a sample": (lambda x: x.std(1, ddof=1), lambda x: x.std(1), DENSE[:1]),
    "std of equal numbers": (lambda x: x.std(0, ddof=1), lambda x: x.std(0), np.ones((1, 5, 4))),
    "var": (lambda x: x.var(ddof=1) + x.var(0), lambda x: x.var() + x.var(0, correction=0), DENSE[:1]),
    "clip": (lambda x: x.clip(0, 1), lambda x: x.clip(0, 1), TIES[:1]),
    "clip by an array": (lambda x, y: x.clip(max=y), lambda x, y: x.clip(max=y), DENSE),
    "squeeze": (
        lambda x: x.unsqueeze(1).unsqueeze(-1).squeeze(1).squeeze(), lambda x: x.unsqueeze(1).squeeze(), DENSE[:1]
    ),
    "where": (
        lambda x, y: F.where(x > y, x * y, F.where(x <= 0.0, y, x)),
        lambda x, y: torch.where(x > y, x * y, torch.where(x <= 0.0, y, x)), TIES,
    ),
    "rows by a variable": (
        lambda x: x[vr.Variable(np.array([[1, -1], [1, 0]]))], lambda x: x[torch.tensor([[1, -1], [1, 0]])], DENSE[:1]
    ),
    "topk": (lambda x: F.topk(x, 3)[0], lambda x: torch.topk(x, 3)[0], DENSE[:1]),
    "topk of rows": (lambda x: F.topk(x, 2, axis=0)[0], lambda x: torch.topk(x, 2, dim=0)[0], DENSE[:1]),
    "cumsum": (lambda x: x.cumsum(-1) * x.cumsum(0), lambda x: x.cumsum(-1) * x.cumsum(0), DENSE[:1]),
    "huber_loss": (
        lambda x, y: F.huber_loss(x, y, "none", delta=0.7), lambda x, y: theirs_F.huber_loss(x, y, "none", 0.7), DENSE
    ),
    "huber_loss at the edge": (F.huber_loss, theirs_F.huber_loss, TIES),
    "smooth_l1_loss": (
        lambda x, y: F.smooth_l1_loss(x, y, "sum", beta=0.7),
        lambda x, y: theirs_F.smooth_l1_loss(x, y, reduction="sum", beta=0.7), DENSE,
    ),
    "transpose": (lambda x: x.transpose(0, -1), lambda x: x.transpose(0, -1), DENSE[:1]),
    "stack": (lambda *v: F.stack(v, -1), lambda *v: torch.stack(v, -1), DENSE),
    "split": (
        lambda x: F.concat([a * 2.0 if k else a @ a.T for k, a in enumerate(F.split(x, 3))]),
        lambda x: torch.cat([a * 2.0 if k else a @ a.T for k, a in enumerate(torch.split(x, 3, -1))], -1), DENSE[:1],
    ),
    "batched products": (
        lambda x, y: x.reshape(5, 2, 2) @ y.reshape(5, 2, 2),
        lambda x, y: x.reshape(5, 2, 2) @ y.reshape(5, 2, 2), DENSE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype):
    ours, theirs, values = CASES[name]
    xs = [vr.Variable(value.astype(dtype), requires_grad=True) for value in values]
    ts = [torch.tensor(value.astype(dtype), requires_grad=True) for value in values]
    out, wanted = ours(*xs), theirs(*ts)
    weight = np.random.default_rng(1).standard_normal(out.shape).astype(dtype)
    (out * weight).sum().backward()
    (wanted * torch.tensor(weight)).sum().backward()
    tolerance = {"rtol": 1e-12, "atol": 1e-14} if dtype is np.float64 else {"rtol": 2e-6, "atol": 2e-6}
    np.testing.assert_allclose(np.asarray(out), wanted.detach().numpy(), **tolerance)
    for x, t in zip(xs, ts, strict=True):
        np.testing.assert_allclose(x.grad, t.grad.numpy(), **tolerance)


@pytest.mark.parametrize("number", [np.sqrt(8), np.float32(0.1), np.int64(2), np.bool_(True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scalars_of_numpy_take_the_data_type(number, dtype):
    array = np.array([1.0, 2.0], dtype)
    for compute in (lambda x: x * number, lambda x: x / number, lambda x: number + x):
        ours, theirs = compute(vr.Variable(array)), compute(torch.from_numpy(array))
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)
    with pytest.raises(TypeError):
        torch.from_numpy(array) * [1.0, 2.0]
