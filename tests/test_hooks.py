"""Hooks on Variables and gradients of inner ones: PyTorch's conventions, for dense and sparse gradients."""

import copy
import pickle

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once
from tests.test_gradient import alive
from varlen_rnn.nn import functional as F


def leaf(*values, name=None):
    return vr.Variable(np.array(values or (1.0, 2.0)), requires_grad=True, name=name)


def test_a_hook_of_an_inner_variable_sees_the_sum_once_and_returns_what_goes_on():
    x, seen = leaf(), []
    y = x * 3.0

    def hook(gradient):
        seen.append(gradient.tolist())
        return gradient * 10.0

    y.register_hook(hook)
    (y * 2.0 + y).sum().backward()
    assert seen == [[3, 3]]
    assert x.grad.tolist() == [90, 90]
    assert y.grad is None


def test_a_hook_of_a_leaf_sees_the_sum_of_the_pass_and_not_what_was_there():
    x, seen = leaf(), []
    x.grad = np.array([100.0, 100.0])
    x.register_hook(lambda gradient: seen.append(gradient.tolist()) or -gradient)
    (x * 2.0 + x * 3.0).sum().backward()
    (x * 4.0).sum().backward()
    assert seen == [[5, 5], [4, 4]]
    assert x.grad.tolist() == [91, 91]


def test_hooks_run_in_order_and_each_gets_what_the_last_one_returned():
    x, y = leaf(), leaf()
    z, seen = x * y, []
    z.register_hook(lambda gradient: seen.append(("add", gradient[0])) or gradient + 1.0)
    z.register_hook(lambda gradient: seen.append(("look", gradient[0])))
    handle = z.register_hook(lambda gradient: seen.append(("never", gradient[0])))
    z.register_hook(lambda gradient: seen.append(("twice", gradient[0])) or gradient * 2.0)
    handle.remove()
    handle.remove()
    z.sum().backward()
    assert seen == [("add", 1), ("look", 2), ("twice", 2)]
    assert x.grad.tolist() == [4, 8]


def test_a_hook_may_remove_itself():
    x, seen = leaf(), []
    handle = x.register_hook(lambda gradient: handle.remove() or seen.append("removed"))
    x.register_hook(lambda gradient: seen.append("stays"))
    for _ in range(2):
        (x * 2.0).sum().backward()
    assert seen == ["removed", "stays", "stays"]


@pytest.mark.parametrize("use", [lambda y: y.sum().backward(), lambda y: y.backward(np.ones(2))])
def test_hooks_of_what_a_pass_begins_at(use):
    x, seen = leaf(), []
    x.register_hook(lambda gradient: seen.append("x"))
    y = x * 2.0
    y.register_hook(lambda gradient: seen.append("y"))
    use(y)
    assert seen == ["y", "x"]
    x.backward(np.ones(2))
    assert seen == ["y", "x", "x"]


def test_inner_variables_keep_their_gradients():
    x = leaf()
    y = x * 3.0
    z = y * y
    y.retain_grad()
    z.retain_grad()
    assert (x.retains_grad, y.retains_grad) == (False, True)
    x.retain_grad()
    assert not x.retains_grad, "a leaf keeps its gradient anyway"
    z.sum().backward()
    assert (z.grad.tolist(), y.grad.tolist(), x.grad.tolist()) == ([1, 1], [6, 12], [18, 36])


def test_a_kept_gradient_is_the_one_that_hooks_return():
    x = leaf()
    y = x * 3.0
    y.retain_grad()
    y.register_hook(lambda gradient: gradient * 10.0)
    y.sum().backward()
    assert (y.grad.tolist(), x.grad.tolist()) == ([10, 10], [30, 30])


def test_kept_gradients_share_no_memory():
    x, y = leaf(), leaf()
    total = x + y
    total.retain_grad()
    seen = []
    x.register_hook(seen.append)
    total.sum().backward()
    total.grad *= 5.0
    x.grad *= 3.0
    assert (total.grad[0], x.grad[0], y.grad[0], seen[0][0]) == (5, 3, 1, 1)


def test_hooks_cannot_change_a_gradient_in_place():
    x, y = leaf(), leaf()
    x.register_hook(lambda gradient: gradient.__imul__(2.0))
    with pytest.raises(ValueError, match="read-only"):
        (x + y).sum().backward()


def test_what_a_hook_returns_stays_its_own():
    x, mine = leaf(), np.array([7.0, 8.0])
    x.register_hook(lambda gradient: mine)
    (x * 2.0).sum().backward()
    x.grad += 1.0
    assert (mine.tolist(), x.grad.tolist()) == ([7, 8], [8, 9])


@pytest.mark.parametrize(
    "change",
    [lambda g: g[::-1], lambda g: vr.Variable(g) * 1.0, lambda g: g.tolist(), lambda g: vr.LoDTensor(g + 0.0)],
    ids=["view", "Variable", "list", "LoDTensor"],
)
def test_a_hook_returns_anything_like_an_array(change):
    x = leaf()
    y = x * 3.0
    y.register_hook(change)
    (y * np.array([1.0, 1.0])).sum().backward()
    assert x.grad.tolist() == [3, 3]
    x.grad[0] = 1  # writeable


def test_outputs_of_one_operator_have_hooks_of_their_own():
    x = vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]])
    y, (h_n, c_n) = vr.nn.LSTM(3, 4)(x)
    kinds = []
    for variable in (y, h_n, c_n):
        variable.retain_grad()
        variable.register_hook(lambda gradient: kinds.append(type(gradient)))
    (y.sum() + (h_n * 2.0).sum()).backward()
    assert isinstance(y.grad, vr.LoDTensor)
    assert y.grad.lod() == [[0, 2, 5]]
    assert (np.unique(y.grad.data), np.unique(h_n.grad), c_n.grad) == (1, 2, None)
    assert set(kinds) == {vr.LoDTensor, np.ndarray}
    assert len(kinds) == 2


def table_and_loss(dense_too=False):
    table = vr.nn.Embedding(4, 1, dtype=np.float64)
    loss = table(np.array([0, 2])).sum() + (table(np.array([2])) * 10.0).sum()
    return table.weight, loss + table.weight.sum() if dense_too else loss


def test_hooks_of_a_table_see_one_sparse_gradient():
    weight, loss = table_and_loss()
    seen = []
    weight.register_hook(lambda g: seen.append(g) or vr.SelectedRows(g.rows, g.value * 2.0, g.height))
    loss.backward()
    (gradient,) = seen
    assert isinstance(gradient, vr.SelectedRows)
    assert gradient.to_dense().ravel().tolist() == [1, 0, 11, 0]
    assert not gradient.value.flags.writeable
    assert weight.grad.to_dense().ravel().tolist() == [2, 0, 22, 0]


def test_a_hook_may_make_a_sparse_gradient_dense_and_back():
    weight, loss = table_and_loss()
    first = weight.register_hook(lambda g: g.to_dense())
    loss.backward()
    assert weight.grad.ravel().tolist() == [1, 0, 11, 0]
    first.remove()
    weight.grad, loss = None, (weight * 2.0).sum()
    weight.register_hook(lambda g: vr.SelectedRows([1], g[1:2], 4))
    loss.backward()
    assert weight.grad.to_dense().ravel().tolist() == [0, 2, 0, 0]


def test_hooks_of_a_table_see_dense_and_sparse_gradients_together():
    weight, loss = table_and_loss(dense_too=True)
    seen = []
    weight.register_hook(seen.append)
    loss.backward()
    assert [g.ravel().tolist() for g in seen] == [[2, 1, 12, 1]]
    assert weight.grad.ravel().tolist() == [2, 1, 12, 1]


class Refused(Exception):
    """An error of a hook."""


def refuse(gradient):
    raise Refused


def test_an_error_in_a_hook_ends_the_pass_as_it_is():
    x, y = leaf(), leaf()
    inner = x * 2.0
    inner.register_hook(refuse)
    loss = (inner + y).sum()
    with pytest.raises(Refused):
        loss.backward()
    assert x.grad is None
    assert vr.grad_enabled()
    with pytest.raises(vr.ProgramError, match="a second one"):
        loss.backward()


def test_an_error_in_a_hook_leaves_no_cycle():
    def fails():
        import weakref

        inner = leaf() * 2.0
        arrays = [weakref.ref(inner.value.data)]
        inner.register_hook(refuse)
        with pytest.raises(Refused):
            inner.sum().backward()
        return arrays

    assert alive(fails) == 0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.ones(3), r"gradient that a hook of 'x' returned: expected shape \(2,\), got shape \(3,\)"),
        (np.ones(2, np.float32), "a hook of 'x' returned: expected float64, got float32 .x.astype"),
        (1.0, r"a hook of 'x' returned: expected shape \(2,\), got shape \(\)"),
        (vr.SelectedRows([0], np.ones(1), 3), r"a hook of 'x' returned: expected shape \(2,\), got shape \(3,\)"),
        ("rubbish", "expected numbers"),
    ],
)
def test_what_a_hook_returns_is_checked(returned, message):
    x = leaf(name="x")
    x.register_hook(lambda gradient: returned)
    with pytest.raises(vr.InputError, match=message):
        (x * 2.0).sum().backward()


def in_a_program(use):
    with vr.program_guard():
        use(vr.feed_data("x", [2], "float64", requires_grad=True))


def beside_a_program(use):
    x = leaf()
    with vr.program_guard():
        use(x)


def in_a_step(use):
    def cell(x_t, state):
        state = F.tanh(x_t + state)
        use(state)
        return state, state

    vr.nn.DynamicRNN(cell)(vr.create_lod_tensor(np.ones((3, 2)), [[1, 2]]), [np.zeros((2, 2))])


@pytest.mark.parametrize("where", [in_a_program, beside_a_program, in_a_step])
@pytest.mark.parametrize("use", [lambda x: x.register_hook(print), lambda x: x.retain_grad()], ids=["hook", "retain"])
def test_hooks_are_for_eager_mode(where, use):
    with pytest.raises(vr.ProgramError, match="expected eager mode, got a program"):
        where(use)


def test_a_program_refuses_gradients_of_parameters_with_hooks():
    model = vr.nn.Linear(2, 1)
    handle = model.weight.register_hook(print)

    def minimize():
        with vr.program_guard():
            vr.optim.SGD(model.parameters(), lr=0.1).minimize(model(np.ones((1, 2), np.float32)).sum())

    with pytest.raises(vr.ProgramError, match="expected leaves without hooks, got a hook of 'weight'"):
        minimize()
    with vr.program_guard():
        model(np.ones((1, 2), np.float32))  # no gradient, no hook
    handle.remove()
    minimize()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: vr.Variable(1.0).register_hook(print), "register_hook: expected a Variable that requires a gradient"),
        (lambda: vr.Variable(1.0, name="one").retain_grad(), "retain_grad of 'one': expected a Variable that requires"),
        (lambda: leaf().register_hook(3), "register_hook, hook: expected a function of the gradient, got 3"),
    ],
)
def test_what_has_no_gradient_takes_no_hook(use, message):
    with pytest.raises(vr.InputError, match=message):
        use()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_no_hooks(copied):
    x = leaf()
    x.register_hook(lambda gradient: gradient * 10.0)
    other = copied(x)
    (other * 2.0).sum().backward()
    assert other.grad.tolist() == [2, 2]
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [20, 20]


def test_a_hook_of_what_a_frozen_leaf_made_runs():
    x, seen = leaf(), []
    y = x * 2.0
    y.retain_grad()
    y.register_hook(lambda gradient: seen.append("y"))
    x.requires_grad = False
    (y * 3.0).sum().backward()
    assert (seen, y.grad.tolist(), x.grad) == (["y"], [3, 3], None)


def test_hooks_record_nothing():
    x = leaf()
    x.register_hook(lambda gradient: (vr.Variable(gradient, requires_grad=True) * 2.0).detach())
    x.register_hook(lambda gradient: None if vr.grad_enabled() else gradient + 1.0)
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [5, 5]


@pytest.mark.parametrize("sparse", [False, True])
def test_passes_of_threads_run_the_hooks_of_their_leaves(sparse):
    table = vr.nn.Embedding(3, 1, sparse=sparse, dtype=np.float64)
    calls = []
    table.weight.register_hook(
        lambda g: calls.append(1) or (vr.SelectedRows(g.rows, g.value * 2.0, 3) if sparse else g * 2.0)
    )

    def passes():
        for _ in range(25):
            hidden = table(np.array([0, 2, 2]))
            hidden.register_hook(lambda g: calls.append(1) or g * 3.0)
            hidden.sum().backward()

    at_once(passes, [()] * 4)
    gradient = table.weight.grad.to_dense() if sparse else table.weight.grad
    assert gradient.ravel().tolist() == [600, 0, 1200]
    assert len(calls) == 200


def test_hooks_registered_by_threads_are_all_there():
    x, calls = leaf(), []
    at_once(lambda: x.register_hook(lambda gradient: calls.append(1)), [()] * 8)
    (x * 2.0).sum().backward()
    assert len(calls) == 8


def of_torch():
    torch = pytest.importorskip("torch")
    return lambda *values: torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("library", [lambda: leaf, of_torch], ids=["ours", "torch"])
def test_the_order_of_calls_is_that_of_torch(library):
    make, seen = library(), []
    x, w = make(1.0, 2.0), make(3.0, 4.0)
    h = x * w
    y = h * x

    def look(name, factor=None):
        def hook(gradient):
            seen.append((name, np.asarray(gradient).tolist()))
            return None if factor is None else gradient * factor

        return hook

    h.retain_grad()
    h.register_hook(look("h", 2.0))
    h.register_hook(look("h again"))
    y.register_hook(look("y"))
    w.register_hook(look("w", 10.0))
    loss = (y + h).sum()
    loss.register_hook(look("loss"))
    loss.backward()
    assert seen == [("loss", 1.0), ("y", [1, 1]), ("h", [2, 3]), ("h again", [4, 6]), ("w", [4, 12])]
    assert [np.asarray(v.grad).tolist() for v in (h, w, x)] == [[4, 6], [40, 120], [15, 32]]
