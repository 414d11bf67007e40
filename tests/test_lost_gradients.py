"""Arrays made of Variables: where a gradient would be lost there is an error, and its hint keeps the gradient."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F
from varlen_rnn.rows.checks import loses_gradient

LEVEL = [[2, 1]]


def leaf(**options):
    return vr.Variable(np.arange(6.0).reshape(3, 2), requires_grad=True, **options)


def computed():
    return leaf() * 2.0


# name: (a use of a Variable of shape (3, 2), what the error begins with)
USES = {
    "LoDTensor": (lambda v: vr.LoDTensor(v), "data"),
    "LoDTensor with a LoD": (lambda v: vr.LoDTensor(v, [[0, 2, 3]]), "data"),
    "LoDTensor of a list": (lambda v: vr.LoDTensor([v, v]), "data"),
    "create_lod_tensor": (lambda v: vr.create_lod_tensor(v, LEVEL), "data"),
    "create_lod_tensor of rows": (lambda v: vr.create_lod_tensor(list(v), LEVEL), "data"),
    "from_sequences": (lambda v: vr.LoDTensor.from_sequences([np.zeros((1, 2)), v]), "sequences"),
    "from_sequences of rows": (lambda v: vr.LoDTensor.from_sequences([list(v)]), "sequences"),
    "from_sequences, nested": (lambda v: vr.LoDTensor.from_sequences([[v], [v, v]]), "sequences"),
    "from_sequences of a data type": (lambda v: vr.LoDTensor.from_sequences([v], dtype=np.float32), "sequences"),
    "Variable": (lambda v: vr.Variable(v), "Variable"),
    "Variable that requires a gradient": (lambda v: vr.Variable(v, requires_grad=True), "Variable"),
    "Variable of a nested list": (lambda v: vr.Variable([[0.0, v[0, 0]]]), "data"),
    "Parameter": (lambda v: vr.nn.Parameter(v), "Parameter"),
    "Parameter of a list": (lambda v: vr.nn.Parameter([v[0, 0], 1.0]), "Parameter"),
    "Buffer": (lambda v: vr.nn.Buffer(v), "Buffer"),
    "SelectedRows": (lambda v: vr.SelectedRows([0, 1, 2], v, 4), "value"),
    "assign": (lambda v: vr.nn.Parameter(np.zeros((3, 2))).assign(v), "assign"),
    "an operand": (lambda v: vr.Variable(np.zeros(2)) * [0.0, v[0, 0]], "an operand"),
    "batches": (lambda v: vr.data.batches(v.with_lod([[0, 2, 3]]), batch_size=1), "sequences"),
    "batches of a list": (lambda v: vr.data.batches([np.zeros((1, 2)), v], batch_size=1), "sequences"),
    "batches of an iterator": (lambda v: vr.data.batches(iter([np.zeros((1, 2)), v]), batch_size=1), "sequences, seq"),
    "batches of others": (lambda v: vr.data.batches([[1.0]], others=[[v]], batch_size=1), "others, input 0"),
    "batches, static": (lambda v: vr.data.batches([[1.0]] * 3, static=v, batch_size=1), "static"),
    "batches, labels": (lambda v: vr.data.batches([[1.0]] * 3, v, batch_size=1), "labels"),
    "batches, labels of rows": (lambda v: vr.data.batches([[1.0]] * 3, list(v), batch_size=1), "labels"),
    "np.concatenate": (lambda v: np.concatenate([v, np.zeros((1, 2))]), "np.concatenate of a Variable"),
    "np.stack": (lambda v: np.stack([v, v]), "np.stack of a Variable"),
    "np.where": (lambda v: np.where(np.ones((3, 2), bool), 0.0, v), "np.where of a Variable"),
    "np.expand_dims": (lambda v: np.expand_dims(v, 0), "np.expand_dims of a Variable"),
    "np.reshape": (lambda v: np.reshape(v, (2, 3)), "np.reshape of a Variable"),
    "np.split": (lambda v: np.split(v, 3), "np.swapaxes of a Variable"),
    "np.linalg.norm": (lambda v: np.linalg.norm(v), "np.norm of a Variable"),
}  # fmt: skip


@pytest.mark.parametrize("make", [leaf, computed])
@pytest.mark.parametrize("name", USES)
def test_an_array_that_would_lose_a_gradient_is_refused(name, make):
    use, what = USES[name]
    with pytest.raises(vr.InputError, match=f"^{what}.*: expected .*gradient.* got .*detach") as caught:
        use(make())
    assert isinstance(caught.value, vr.ProgramError)


@pytest.mark.parametrize("name", USES)
def test_without_a_gradient_it_works_as_with_arrays(name):
    use, v = USES[name][0], leaf()
    use(v.detach())
    with vr.no_grad():
        use(v)
        use(computed())


def test_what_the_hints_say_keeps_the_gradient():
    v, w = leaf(), leaf()
    rows = F.concat([v * 2.0, w], axis=0).with_lod([[0, 2, 6]])
    assert rows.lod() == [[0, 2, 6]]
    vr.sequence_pool(rows, "sum").sum().backward()
    assert (v.grad == 2).all()
    assert (w.grad == 1).all()
    u = leaf()
    u.with_lod(vr.LoD.from_lengths(LEVEL)).sum().backward()
    assert (u.grad == 1).all()


@pytest.mark.parametrize("use", [lambda v: vr.LoDTensor(v), lambda v: vr.LoDTensor.from_sequences([v])])
def test_constructors_name_what_joins_sequences(use):
    with pytest.raises(vr.ProgramError, match=r"concat\(variables, axis=0\)\.with_lod\(offsets\) keeps the gradient"):
        use(leaf())


def test_a_variable_is_told_that_it_is_one():
    with pytest.raises(vr.ProgramError, match="the Variable itself keeps the gradient"):
        vr.Variable(leaf())


def test_an_array_that_is_asked_for_is_one():
    v = leaf()
    for array in (np.asarray(v), v.numpy(), np.array(v), v.value.data):
        assert type(array) is np.ndarray
    np.testing.assert_allclose(v, v.numpy())


LOOKS = {
    "allclose": lambda v: np.allclose(v, v), "array_equal": lambda v: np.array_equal(v, v), "shape": np.shape,
    "ndim": np.ndim, "argsort": np.argsort, "zeros_like": np.zeros_like, "full_like": lambda v: np.full_like(v, 3.0),
    "round": np.round, "atleast_1d": np.atleast_1d, "histogram": np.histogram,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_functions_of_numpy_that_only_look_are_not_refused(name):
    assert LOOKS[name](leaf()) is not None


def test_functions_of_numpy_that_are_methods_keep_the_gradient():
    v = leaf()
    for function in (np.sum, np.mean, np.max, np.std):
        assert function(v).requires_grad
    np.sum(np.squeeze(v.unsqueeze(1)) * 2.0).backward()
    assert (v.grad == 2).all()


def test_a_list_that_contains_itself_many_times_is_seen_once():
    inner = [1.0]
    inner += [inner] * 50
    assert not loses_gradient([inner] * 50)
    inner.append(leaf())
    assert loses_gradient([inner] * 50)


@pytest.mark.parametrize("weight", ["weight", "sample_weight"])
def test_weights_of_a_loss_get_their_gradient(weight):
    w = vr.Variable([1.0, 2.0], requires_grad=True)
    logits = vr.Variable([[1.0, 2.0], [0.0, 3.0]], requires_grad=True)
    F.cross_entropy(logits, np.array([0, 1]), reduction="sum", **{weight: w}).backward()
    assert (w.grad > 0).all()


def test_a_state_is_loaded_from_parameters():  # as in PyTorch, whose `load_state_dict` copies numbers, too
    ours, other = vr.nn.Linear(2, 3), vr.nn.Linear(2, 3)
    ours.load_state_dict(dict(other.named_parameters()))
    assert np.array_equal(ours.weight, other.weight)


@pytest.mark.twins
def test_rows_of_a_device_are_treated_alike(device):
    v = vr.Variable(vr.LoDTensor(device.put(np.arange(6.0, dtype=np.float32).reshape(3, 2))), requires_grad=True)
    for use in (lambda: vr.LoDTensor(v), lambda: vr.create_lod_tensor(v, LEVEL), lambda: vr.nn.Parameter(v)):
        with pytest.raises(vr.ProgramError, match="detach"):
            use()
    kept = vr.create_lod_tensor(v.detach(), LEVEL)
    assert kept.device == v.device
    with vr.no_grad():
        assert vr.nn.Parameter(v).device == v.device
    v.with_lod([[0, 2, 3]]).sum().backward()
    assert (device.get(v.grad) == 1).all()
