"""Functions and modules of ours under torch's autograd."""

import copy

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

torch = pytest.importorskip("torch")

import varlen_rnn.torch as vt  # noqa: E402

RNG = torch.Generator().manual_seed(0)


def jagged(lengths, *sizes, grad=True):
    rows = torch.randn(sum(lengths), *sizes, dtype=torch.float64, generator=RNG, requires_grad=grad)
    return rows, torch.nested.nested_tensor_from_jagged(rows, torch.tensor(np.cumsum([0, *lengths])))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: vr.sequence_pool(x, "sqrt"),
        lambda x: vr.sequence_softmax(x),
        lambda x: [vr.sequence_pool(x, "max"), {"all": x * 2.0, "reversed": vr.sequence_reverse(x)}],
        lambda x: F.scaled_dot_product_attention(x.reshape(-1, 1, 3), x.reshape(-1, 1, 3), x.reshape(-1, 1, 3)),
    ],
)
def test_gradcheck(call):
    offsets = torch.tensor([0, 2, 2, 5])
    rows = torch.randn(5, 3, dtype=torch.float64, generator=RNG, requires_grad=True)

    def flat(result):
        parts = result if isinstance(result, list) else [result]
        parts = [p for part in parts for p in (part.values() if isinstance(part, dict) else [part])]
        return tuple(part.values() if part.is_nested else part for part in parts)

    def tested(rows):
        return flat(vt.function(call)(torch.nested.nested_tensor_from_jagged(rows, offsets)))

    assert torch.autograd.gradcheck(tested, (rows,))


def test_structure_and_offsets():
    _, x = jagged([2, 0, 3], 4)
    ids = torch.tensor([1, 0])
    found = vt.function(lambda x, ids, scale: {"same": x * scale, "ids": ids, "pair": (vr.sequence_pool(x, "sum"), 5)})(
        x, ids, scale=2.0
    )
    assert found["same"].offsets() is x.offsets()
    assert (found["same"] + x).shape == x.shape
    assert torch.equal(found["ids"], ids)
    assert found["ids"].data_ptr() != ids.data_ptr()
    assert found["pair"][1] == 5
    assert found["pair"][0].requires_grad
    assert not found["ids"].requires_grad


def test_without_gradients():
    rows, x = jagged([2, 3], 4)
    with torch.no_grad():
        assert not vt.function(vr.sequence_reverse)(x).requires_grad
    assert not vt.function(vr.sequence_reverse)(x.detach()).requires_grad
    vt.function(lambda x, y: x * y)(rows, rows.detach()).sum().backward()
    assert torch.allclose(rows.grad, rows)


def test_sparse_gradients_of_a_table():
    table = torch.randn(10, 3, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([1, 7, 1])
    lookup = vt.function(lambda table, ids: F.embedding(ids, table, sparse=True))
    lookup(table, ids).sum().backward()
    assert table.grad.is_sparse
    assert table.grad.to_dense()[:, 0].tolist() == [0, 2, 0, 0, 0, 0, 0, 1, 0, 0]


def test_second_passes():
    rows, x = jagged([2, 3], 4)
    loss = vt.function(lambda x: F.dropout(vr.sequence_cumsum(x), 0.5))(x).values().sum()
    (first,) = torch.autograd.grad(loss, rows, retain_graph=True)
    (second,) = torch.autograd.grad(loss, rows)
    assert torch.equal(first, second)
    rows = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(vt.function(F.tanh)(rows).sum(), rows, create_graph=True)
    with pytest.raises(vr.errors.ProgramError, match="gradient: expected a first derivative"):
        gradient.sum().backward()


def test_errors():
    with pytest.raises(vr.errors.DTypeError, match="expected a function"):
        vt.function(3)
    with pytest.raises(vr.errors.DTypeError, match=r"varlen_rnn.nn.Module, got Linear"):
        vt.Module(torch.nn.Linear(2, 2))
    _, x = jagged([2, 3], 4)
    with pytest.raises(vr.errors.DTypeError, match="a jagged nested tensor, got a PackedSequence"):
        vt.function(vr.sequence_reverse)(torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3)]))
    with pytest.raises(vr.errors.DTypeError, match="at most one level"):
        vt.function(lambda x: x.with_lod([[0, 2], [0, 2, 5]]))(x)
    with pytest.raises(vr.errors.DTypeError, match="a tensor on the CPU, got a tensor on meta"):
        vt.function(F.tanh)(torch.ones(3, device="meta"))


class Model(vr.nn.Module):
    """A model of ours, of a cell of a user's and layers in lists."""

    def __init__(self, cell):
        self.table = vr.nn.Embedding(10, 4, dtype=np.float64)
        self.layers = [vr.nn.Recurrent(cell, 4, 5, dtype=np.float64)]
        self.behind = vr.nn.Linear(5, 2, dtype=np.float64)
        self.dropout = vr.nn.Dropout(0.5)

    def forward(self, ids):
        y, _ = self.layers[0](self.table(ids))
        return self.behind(self.dropout(vr.sequence_pool(y, "mean")))


@pytest.fixture
def model():
    vr.manual_seed(0)
    return Model(vr.cells.CELLS["gru"])


def test_a_module_of_ours_trains_in_torch(model):
    ours, layer = copy.deepcopy(model), vt.Module(model)
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in ours.named_parameters()]
    layer.eval()
    ours.eval()
    ids = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3, 4, 9])], layout=torch.jagged)
    optimizer, of_ours = torch.optim.SGD(layer.parameters(), lr=0.1), vr.optim.SGD(ours.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (layer(ids) ** 2).sum()
        loss.backward()
        optimizer.step()
        of_ours.zero_grad()
        expected = (ours(vr.create_lod_tensor(np.array([1, 2, 3, 4, 9]), [[2, 3]])) ** 2).sum()
        expected.backward()
        of_ours.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for name, parameter in ours.named_parameters():
        np.testing.assert_allclose(layer.get_parameter(name).detach().numpy(), parameter.data, rtol=1e-12)
    layer.train()
    assert model.dropout.training


def test_copies_of_a_module_are_apart(model):
    layer = vt.Module(model)
    other = copy.deepcopy(layer).eval()
    layer.eval()
    ids = torch.nested.nested_tensor([torch.tensor([1, 2])], layout=torch.jagged)
    wanted = layer(ids)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert torch.equal(other(ids), wanted)
    assert not layer(ids).any()
    other.load_state_dict(layer.state_dict())
    assert not other(ids).any()
    loss = wanted.sum()
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


def test_a_module_that_ran_on_other_parameters_since():
    layer = vt.Module(vr.nn.Linear(3, 4, dtype=np.float64))
    stacked = vt.Module(vr.nn.Recurrent(vr.cells.CELLS["gru"], 3, 4, dtype=np.float64))
    for module, x in ((layer, torch.ones(2, 3, dtype=torch.float64)), (stacked, jagged([2, 3], 3, grad=False)[1])):
        ones = {name: torch.ones_like(value, requires_grad=True) for name, value in module.named_parameters()}
        twos = {name: (2 * value).detach().requires_grad_() for name, value in ones.items()}
        x = (x * 0.1).requires_grad_()

        def loss(values, module=module, x=x):
            found = torch.func.functional_call(module, values, (x,))
            return (found[1] if isinstance(found, tuple) else found).square().sum()

        alone = torch.autograd.grad(loss(ones), [x, *ones.values()])
        first = loss(ones)
        with torch.no_grad():
            loss(twos)
        for one, other in zip(torch.autograd.grad(first, [x, *ones.values()]), alone, strict=True):
            assert torch.equal(one.values() if one.is_nested else one, other.values() if other.is_nested else other)


def test_evaluation_leaves_the_parameters_of_a_thread_that_trains():
    layer = vt.Module(vr.nn.Linear(3, 4))
    x = torch.ones(2, 3)
    layer(x)
    with torch.no_grad():
        layer(x)
    assert all(variable.requires_grad for variable in layer._module.parameters())


def test_a_change_in_place_of_a_result_is_noticed():
    x = torch.ones(3, requires_grad=True)
    y = vt.function(F.tanh)(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        y.sum().backward()


def test_results_do_not_share_memory():
    def both(x):
        y = F.tanh(x)
        return y, y, y.reshape(-1, 1)

    results = vt.function(both)(torch.ones(3))
    assert len({result.data_ptr() for result in results}) == 3
    x = torch.ones(3, requires_grad=True)
    sum(result.sum() for result in vt.function(both)(x)).backward()
    torch.testing.assert_close(x.grad, 3 * (1 - torch.tanh(x.detach()) ** 2))


def test_data_types_that_numpy_has_not():
    with pytest.raises(
        vr.errors.DTypeError, match=r"a data type of NumPy, got torch.bfloat16 \(call tensor.float\(\)\)"
    ):
        vt.function(F.tanh)(torch.ones(3, dtype=torch.bfloat16))


@pytest.mark.parametrize("reentrant", [True, False])
def test_random_numbers_follow_torchs_generator(reentrant):
    drop = vt.function(lambda x: F.dropout(x, 0.5))
    x = torch.ones(100, requires_grad=True)
    torch.manual_seed(0)
    first, following = drop(x), drop(x)
    torch.manual_seed(0)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, following)
    y = torch.utils.checkpoint.checkpoint(lambda x: drop(drop(x) * 1.0), x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


def test_running_moments_are_torchs_buffers():
    layer, theirs = vt.Module(vr.nn.Sequential(vr.nn.BatchNorm1d(3))), torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    assert layer.state_dict().keys() == theirs.state_dict().keys()
    x = torch.randn(7, 3, generator=RNG)
    for make in (lambda m: m, torch.nn.Module.double):  # the second one moves the buffers to other memory
        layer, theirs = make(layer), make(theirs)
        x = x.to(next(layer.parameters()).dtype)
        torch.testing.assert_close(layer(x), theirs(x))
        torch.testing.assert_close(layer.state_dict(), theirs.state_dict())
    theirs(x * 2 + 1)
    layer.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(layer.eval()(x), theirs.eval()(x))
