"""A Variable as Python and NumPy see it: rows, their number, single numbers, comparisons; and what it refuses."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F


def rows():
    return vr.Variable(vr.create_lod_tensor(np.arange(10.0).reshape(5, 2), [[2, 3]]), requires_grad=True)


def test_length_items_and_iteration_are_of_rows():
    y = rows()
    assert len(y) == len(list(y)) == len(np.asarray(y)) == 5
    assert np.array_equal(y[0], [0, 1])
    assert np.array_equal(list(y)[-1], y[-1])
    assert len(y.value) == 2  # of a LoDTensor, sequences
    with pytest.raises(TypeError, match="got a single number"):
        len(y.sum())
    with pytest.raises(TypeError, match="got a single number"):
        iter(y.sum())


def test_the_rows_of_a_program_are_counted_where_they_are_known():
    with vr.program_guard():
        assert len(vr.feed_data("known", [3, 2], "float32")) == 3
        unknown = vr.feed_data("unknown", [-1, 2], "float32")
        for count in (len, iter, bool, float):
            with pytest.raises(vr.ProgramError, match="'unknown'"):
                count(unknown)


def test_a_single_number_is_a_number():
    loss = (rows() * 0.5).sum()
    assert (float(loss), int(loss), bool(loss), bool(loss * 0.0)) == (22.5, 22, True, False)
    assert float(vr.Variable([[1.5]])) == 1.5
    for convert in (float, int, bool):
        with pytest.raises(ValueError, match=r"single number|size 1"):
            convert(rows())
    with pytest.raises(vr.ShapeError, match="is not None"):
        assert not rows()


@pytest.mark.parametrize("number", [vr.Variable(2.0), rows()])
def test_a_variable_is_no_constant_of_an_operator(number):
    with pytest.raises(vr.DTypeError, match="expected a number, "):
        vr.Variable([1.0]) ** number


@pytest.mark.parametrize(
    "other", [3, 3.0, True, np.float32(3), np.zeros((5, 2)), [1, 2], vr.LoDTensor(np.zeros(5)), rows()]
)
def test_values_are_not_compared_silently(other):
    y = rows()
    for compare in (lambda: y == other, lambda: y != other):
        with pytest.raises(vr.DTypeError, match="compares values"):
            compare()


def test_variables_are_keys_and_themselves():
    x, y = rows(), rows()
    assert {x: 1, y: 2}[y] == 2
    assert y in {x, y}
    assert y == y
    assert y not in (None, "a")
    assert y != None  # noqa: E711


def test_numpys_sum_and_mean_are_those_of_the_variable():
    y = rows()
    assert (np.sum(y).item(), np.mean(y).item()) == (45, 4.5)
    assert np.array_equal(np.mean(y, axis=0, keepdims=True), [[4, 5]])
    np.sum(y).backward()
    assert (y.grad.data == 1).all()
    with pytest.raises(vr.DTypeError, match="mean, dtype: expected None, got float32"):
        np.mean(y, dtype="float32")


X = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 3]])


@pytest.mark.parametrize(
    "use",
    [
        lambda y: vr.nn.Linear(4, 2)(y),
        lambda y: vr.sequence_pool(y, "max"),
        lambda y: y[0] + y,
        lambda y: vr.Variable(y),
        lambda y: vr.Variable(list(y)),
        lambda y: vr.nn.LSTM(4, 2)(y),
        lambda y: vr.nn.functional.tanh(y),
    ],
)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_what_a_recurrent_layer_returns_is_a_pair(use, kind):
    with pytest.raises(vr.DTypeError, match=r"begins with a Variable \(a recurrent layer returns \(y, states\): pass"):
        use(getattr(vr.nn, kind)(3, 4)(X))


def test_sequential_unpacks_nothing():
    with pytest.raises(vr.DTypeError, match=r"returns \(y, states\): pass y"):
        vr.nn.Sequential(vr.nn.LSTM(3, 4), vr.nn.Linear(4, 2))(X)


def test_a_second_pass_through_states_carried_over_names_detach():
    layer = vr.nn.GRU(3, 4)
    y, h = layer(X)
    y.sum().backward()
    with pytest.raises(vr.ProgramError, match=r"detach\(\)"):
        layer(X, h)[0].sum().backward()
    layer(X, layer(X)[1].detach())[0].sum().backward()


def test_parameters_of_integers_are_told_so():
    with pytest.raises(vr.DTypeError, match=r"Parameter .*expected float32 or float64, got int64 \(write 1\.0"):
        vr.nn.Parameter([1, 2])


def test_a_single_number_is_written_as_one():
    loss = vr.Variable(np.array(1.5))
    assert (f"{loss:.2f}", f"{loss}") == ("1.50", str(loss))
    with pytest.raises(ValueError, match="a single number"):
        format(vr.Variable(np.ones(3)), ".2f")
    with vr.program_guard(), pytest.raises(vr.ProgramError, match="expected a value"):
        format(vr.feed_data("x", [1], "float32"), ".2f")


def test_rows_by_an_index_with_a_lod_have_it():
    y, index = rows(), vr.create_lod_tensor(np.array([0, -1, 3]), [[2, 1]])
    for by in (index, vr.Variable(index)):
        assert y[by].lod() == [[0, 2, 3]]
        assert np.array_equal(y[by], np.asarray(y)[[0, -1, 3]])
    assert y[np.array([0, 3])].lod() == []
    with pytest.raises(vr.OutOfRangeError, match=r"gather, index, entry 1: expected -5 <= row < 5, got 6"):
        y[vr.LoDTensor(np.array([0, 6]))]
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 2], "float64", lod_level=1)
        out = x[np.array([1, 0])]
    (found,) = vr.Executor().run(program, {"x": y.value}, [out])
    assert np.array_equal(found, np.asarray(y)[[1, 0]])


@pytest.mark.parametrize(
    ("index", "axis", "got"),
    [
        (6, 0, 6),
        ([0, 6], 0, 6),
        (np.array([[1, -6]]), 0, -6),
        ((slice(None), 3), 1, 3),
        ((..., -4), 1, -4),
        ((None, 1, [2, 3]), 1, 3),
        ((np.array([0, 9]), np.array([0, 1])), 0, 9),
    ],
    ids=str,
)
def test_an_index_beyond_its_axis_is_named(index, axis, got):
    size = (5, 3)[axis]
    message = rf"getitem, axis {axis}: expected -{size} <= index < {size}, got {got}$"
    with pytest.raises(vr.OutOfRangeError, match=message):
        vr.Variable(np.zeros((5, 3)))[index]


@pytest.mark.parametrize(
    "index", ["a", 1.5, (0, 0, 0), ([0, 1], [0, 1, 2]), [True], (..., ...), [[0, 1], [2]]], ids=str
)
def test_other_indices_that_fit_nothing_are_shown(index):
    with pytest.raises(vr.ShapeError, match="getitem: expected an index into shape"):
        vr.Variable(np.zeros((5, 3)))[index]


def test_printing_shows_values_shape_data_type_and_sequences():
    assert repr(rows()[:2] * 0.5) == (
        "Variable([[0. , 0.5],\n          [1. , 1.5]], shape=(2, 2), dtype=float64, requires_grad=True)"
    )
    assert str(rows()).endswith("dtype=float64, requires_grad=True)\n  level 0: 2 sequences of 2 to 3 rows, median 2.5")
    assert repr(vr.nn.Parameter([1.0])) == "Parameter([1.], shape=(1,), dtype=float64, requires_grad=True)"
    assert repr(vr.Variable(np.arange(2), name="ids")) == "Variable([0, 1], shape=(2,), dtype=int64, name='ids')"
    assert len(repr(vr.Variable(np.zeros((10_000, 100))))) < 1000
    sparse = vr.SelectedRows([1], np.ones((1, 2)), 3)
    assert repr(vr.Variable(sparse)) == f"Variable of {sparse!r}"
    with vr.program_guard():
        assert "LOD_TENSOR float32 [-1, 2]" in repr(vr.feed_data("x", [-1, 2], "float32"))


def test_a_variable_is_an_array():
    y = rows()
    assert y.numpy() is y.value.data
    assert (y.size, y.numel(), np.size(y), vr.nn.Parameter(np.ones((2, 3))).numel()) == (10, 10, 10, 6)
    with vr.program_guard():
        x = vr.feed_data("x", [-1, 2], "float32")
        for count in (lambda: x.size, x.numel, x.numpy):
            with pytest.raises(vr.ProgramError, match="'x'"):
                count()
    with pytest.raises(vr.DTypeError, match="to_dense"):
        vr.Variable(vr.SelectedRows([1], np.ones((1, 2)), 3)).numpy()


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["max", "min", "std", "var"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_are_numpys(name, axis, keepdims):
    y = vr.Variable(vr.create_lod_tensor(np.random.default_rng(0).standard_normal((5, 3)), [[2, 0, 3]]))
    wanted = getattr(y.numpy(), name)(axis=axis, keepdims=keepdims)
    for found in (
        getattr(y, name)(axis=axis, keepdims=keepdims),
        getattr(np, name)(y, axis=axis, keepdims=keepdims),
    ):
        assert found.lod() == (y.lod() if axis in (1, -1) else [])
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
        assert found.shape == wanted.shape
    with vr.program_guard() as program:
        out = getattr(vr.feed_data("x", [-1, 3], "float64", lod_level=1), name)(axis=axis, keepdims=keepdims)
    assert np.array_equal(vr.Executor().run(program, {"x": y.value}, [out])[0], found)


def test_extremes_of_integers_and_nan_and_of_nothing():
    ids = vr.Variable(np.array([[3, 0], [1, 255]], np.uint8))
    assert (ids.max().item(), ids.min(axis=0).numpy().tolist()) == (255, [1, 0])
    assert np.isnan(vr.Variable([1.0, np.nan]).min().item())
    for make in (lambda x: x.max(), lambda x: x.min(axis=0)):
        with pytest.raises(vr.ShapeError, match="expected at least one element"):
            make(vr.Variable(np.zeros((0, 2))))
    assert vr.Variable(np.zeros((0, 2))).max(axis=1).shape == (0,)
    assert np.isnan(vr.Variable([1.0]).var(ddof=1).item())
    with vr.program_guard(), pytest.raises(vr.ProgramError, match="var, ddof"):
        vr.feed_data("x", [-1, 2], "float32").std(axis=0, ddof=1)


def test_clip_is_numpys_and_leaves_nan():
    y = vr.Variable(np.array([-2.0, 0.5, np.nan, 3.0]))
    assert np.array_equal(np.clip(y, 0, 1), np.clip(y.numpy(), 0, 1), equal_nan=True)
    assert np.array_equal(y.clip(max=1.0), np.minimum(y.numpy(), 1), equal_nan=True)
    assert vr.Variable([1, 5, 9]).clip(2, 6).numpy().tolist() == [2, 5, 6]
    for low, high in ((np.nan, 1.0), (0.0, np.nan), (np.array([0.0, np.nan, 0.0, 0.0]), 1.0)):
        expected = np.clip(y.numpy(), low, high)
        for bound in (low, vr.Variable(low)):  # of a Variable, only a run of a program tells
            assert np.array_equal(y.clip(bound, high), expected, equal_nan=True)
    assert rows().clip(1, np.array([3.0, 5.0])).lod() == [[0, 2, 5]]
    with pytest.raises(vr.DTypeError, match="at least one of min and max"):
        y.clip()


def test_axes_of_size_one_come_and_go():
    y = rows()
    for axis in (1, 2, -1, -2):
        wide = y.unsqueeze(axis)
        assert (wide.shape, wide.lod()) == (np.expand_dims(y.numpy(), axis).shape, y.lod())
        for back in (wide.squeeze(axis), np.squeeze(wide, axis), wide.squeeze()):
            assert np.array_equal(back, y)
            assert back.lod() == y.lod()
    assert y.unsqueeze(0).lod() == []
    one = vr.Variable(vr.create_lod_tensor(np.ones((1, 1)), [[1]]))
    assert (one.squeeze().shape, vr.Variable(np.ones((1, 1))).squeeze().shape) == ((1,), ())
    for wrong in (lambda: y.squeeze(1), lambda: y.squeeze(2), lambda: y.unsqueeze(4)):
        with pytest.raises(vr.ShapeError, match="axis: expected"):
            wrong()
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 2], "float64", lod_level=1)
        out = x.unsqueeze(1).squeeze() * 2.0
    found = vr.Executor().run(program, {"x": y.value}, [out])[0]
    assert np.array_equal(found.data, y.numpy() * 2)


def test_a_parameter_is_frozen_and_thawed():
    layer, x = vr.nn.Linear(2, 2), np.ones((3, 2), np.float32)
    assert layer.weight.requires_grad_(False) is layer.weight
    layer(x).sum().backward()
    assert layer.weight.grad is None
    layer.weight.requires_grad_()
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with pytest.raises(vr.DTypeError, match="expected float32 or float64, got int64"):
        vr.Variable([1]).requires_grad_()
    with pytest.raises(vr.ProgramError, match="expected a leaf"):
        layer(x).requires_grad_(False)


def test_labels_of_floats_are_told_to_be_integers():
    message = r"labels: expected integers, one class per row, or probabilities of shape \(3, 2\), got float64 of"
    with pytest.raises(vr.DTypeError, match=message):
        vr.nn.functional.cross_entropy(np.zeros((3, 2)), np.zeros(3))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_of_bools_and_integers_are_int64(dtype, axis, keepdims):
    numbers = np.random.default_rng(0).integers(0, 120, (300, 4)).astype(dtype)
    x = vr.Variable(numbers).with_lod([[0, 100, 300]])
    found, wanted = x.sum(axis, keepdims), numbers.sum(axis, dtype=np.int64, keepdims=keepdims)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, wanted)
    assert bool(found.lod()) == (axis in (1, -1))
    np.testing.assert_array_equal(np.sum(x, axis=axis, keepdims=keepdims), wanted)


def test_the_share_of_right_predictions_is_a_mean_of_bools():
    scores, labels = vr.Variable(np.eye(4, 3, dtype=np.float32)), np.array([0, 1, 1, 0])
    right = F.equal(scores.argmax(1), labels)
    assert (right.sum().item(), right.mean().item(), right.mean().dtype) == (3, 0.75, np.float32)
    np.testing.assert_array_equal((scores > 0).mean(axis=0), np.float32([0.25, 0.25, 0.25]))
    assert np.mean(right).item() == 0.75
    assert np.isnan(vr.Variable(np.zeros(0, bool)).mean().item())
    assert vr.Variable(np.zeros(0, bool)).sum().item() == 0


def test_other_reductions_of_integers_ask_for_floats():
    for x, name in ((vr.Variable([1, 2]), "int64"), (vr.Variable([1, 2]).astype(np.uint8), "uint8")):
        with pytest.raises(vr.DTypeError, match=rf"got {name} \(x.astype\(np.float32\) converts\)"):
            x.mean()
    with pytest.raises(vr.DTypeError, match="got uint64"):
        vr.Variable(np.array([1], np.uint64)).sum()


def test_a_program_sums_bools():
    program = vr.Program()
    with vr.program_guard(program):
        x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        found = [(x > 0.5).sum(axis=1), (x > 0.5).mean()]
    value = vr.create_lod_tensor(np.array([[1, 0, 1], [0, 0, 1]], np.float32), [[1, 1]])
    total, share = vr.Executor().run(program, feed={"x": value}, fetch_list=found)
    assert (np.asarray(total).tolist(), np.asarray(share).item()) == ([2, 1], 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.sum(dim=1), r"Variable\.sum\(\) got an unexpected keyword argument 'dim' \(its name is axis"),
        (lambda x: x.max(1, keepdim=True), "'keepdim' .its name is keepdims, as in NumPy"),
        (lambda x: x.transpose(dim0=0, dim1=1), "'dim0' .its name is axis0"),
        (lambda x: F.concat([x, x], dim=0), r"^concat\(\) got an unexpected keyword argument 'dim' \(its name is axis"),
        (
            lambda x: F.softmax(x, dim=0),
            r"^softmax\(\) .* 'dim' \(leave it out.*the last axis.*transpose\(axis, -1\) before",
        ),
        (lambda x: F.log_softmax(x, axis=0), r"^log_softmax\(\) .*sequence_softmax runs over the steps of each"),
        (lambda x: vr.nn.Softmax(dim=1), r"^Softmax\(\) .*leave it out, because the function always uses the last"),
        (lambda x: x.sum(along=1), r"unexpected keyword argument 'along'$"),
    ],
)
def test_an_argument_of_pytorch_is_answered_with_its_name_here(call, message):
    with pytest.raises(TypeError, match=message):
        call(vr.Variable(np.ones((2, 3))))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_hint_of_softmax_reaches_any_axis(axis):
    x = np.random.default_rng(0).standard_normal((5, 3, 2))
    y = F.softmax(vr.Variable(x).transpose(axis, -1)).transpose(axis, -1)
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True), rtol=1e-12)
    of_rows = vr.Variable(vr.create_lod_tensor(x[:, :, 0], [[2, 3]]))
    of_sequences = vr.sequence_softmax(of_rows).numpy()
    np.testing.assert_allclose([of_sequences[:2].sum(axis=0), of_sequences[2:].sum(axis=0)], 1.0)
