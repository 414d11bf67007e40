"""Arrays that somebody changes after the check: an error of ours before a kernel reads or writes beside them.

The cases run in a process of their own, for a kernel that trusts such an array may end its process.
"""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import varlen_rnn as vr
from tests.waiting import HANGS

F = np.float32
ROWS, MANY = 1000, 10**6
CASES = {}
pool = vr.sequence_pool


def case(function):
    CASES[function.__name__] = function
    return function


def rows():
    return vr.create_lod_tensor(np.ones((ROWS, 4), F), [[500, 500]])


def parameter(shape=(100, 1)):
    return vr.nn.Parameter(np.zeros(shape, F))


def step(p, gradient):
    p.grad = gradient
    vr.optim.SGD([p], 0.1).step()


def wide():
    """Return an array of one wide row, and a gradient made of it."""
    value = np.ones((1, MANY), F)
    return value, vr.SelectedRows([99], value, 100)


@case
def indices_apart_move_their_axes_before_the_rows():
    x = vr.Variable(vr.create_lod_tensor(np.ones((2 * MANY, 2, 2), F), [[2 * MANY]]))
    pool(x[:, [0, 1], None, [0, 1]], "sum")


@case
def a_boolean_and_an_array_apart():
    x = vr.Variable(vr.create_lod_tensor(np.ones((2 * MANY, 2, 2), F), [[2 * MANY]]))
    pool(x[:, True, :, np.array([0, 1])], "sum")


@case
def a_number_and_an_array_apart():
    x = vr.Variable(vr.create_lod_tensor(np.ones((2 * MANY, 2, 2, 2), F), [[2 * MANY]]))
    pool(x[:, 0, :, [0]], "sum")


@case
def rows_that_were_handed_out():
    x = rows()
    x.data.shape = (1, 4 * ROWS)
    pool(x, "sum")


@case
def rows_that_were_handed_out_as_an_array():
    y = vr.Variable(rows()) * 2.0
    np.asarray(y).shape = (1, 4 * ROWS)
    pool(y, "sum")


@case
def rows_that_became_fewer():
    y = vr.Variable(rows()) * 2.0
    y.value.data.resize((1, 4), refcheck=False)
    pool(y, "sum")


@case
def rows_of_another_data_type():
    x = vr.create_lod_tensor(np.ones(MANY, F), [[MANY]])
    x.data.dtype = np.float64
    pool(x, "sum")


@case
def rows_without_a_dimension():
    x = vr.create_lod_tensor(np.ones((1, 1), F), [[1]])
    x.data.shape = ()
    pool(x, "sum")


@case
def rows_before_a_layer():
    x = vr.create_lod_tensor(np.ones((4 * ROWS, 1), F), [[4 * ROWS]])
    x.data.shape = (1, 4 * ROWS)
    vr.nn.LSTM(4 * ROWS, 2)(x)


@case
def rows_before_a_layer_of_two_directions():
    x = vr.create_lod_tensor(np.ones((4 * ROWS, 1), F), [[4 * ROWS]])
    x.data.shape = (1, 4 * ROWS)
    vr.nn.GRU(4 * ROWS, 2, bidirectional=True)(x)


@case
def rows_before_the_gradient():
    x = vr.Variable(rows(), requires_grad=True)
    y = pool(x, "sum")
    x.value.data.shape = (1, 4 * ROWS)
    y.sum().backward()


@case
def rows_before_steps_of_the_users_own():
    x = rows()
    x.data.shape = (1, 4 * ROWS)
    vr.nn.DynamicRNN(lambda x, s: (s + 1.0, s + 1.0))(x, [np.zeros((2, 1), F)])


@case
def rows_that_are_fed():
    with vr.program_guard() as program:
        y = pool(vr.feed_data("x", [-1, -1], "float32", 1), "sum")
    x = rows()
    x.data.shape = (1, 4 * ROWS)
    vr.Executor().run(program, {"x": x}, [y])


@case
def rows_of_a_gradient_that_were_handed_out():
    _, gradient = wide()
    gradient.value.shape = (MANY, 1)
    step(parameter(), gradient)


@case
def offsets_of_a_tensor_from_another_process():
    x = pickle.loads(pickle.dumps(rows()))
    x.structure.levels[0][1:] = 10**7
    pool(x, "sum")


@case
def offsets_of_a_copy():
    x = copy.deepcopy(rows())
    x.structure.levels[0][1:] = 10**7
    pool(x, "sum")


@case
def listed_rows_of_a_copy():
    gradient = copy.deepcopy(vr.SelectedRows([1], np.ones((1, 1), F), 100))
    gradient.rows[0] = 10**9
    step(parameter(), gradient)


@case
def a_plan_from_another_process():
    plan = pickle.loads(pickle.dumps(vr.sort_by_seq_len([0, 2, 5])))
    plan.starts[0] = 10**9
    vr.segment_inputs(np.ones((5, 1), F), plan, 0)


@case
def steps_of_a_plan_from_another_process():
    plan = vr.sort_by_seq_len([0, 2, 5])
    plan.previous_rows(), plan.batch_sizes
    pickle.loads(pickle.dumps(plan)).batch_sizes[0] = 10**9


@case
def columns_that_are_no_integers():
    index = np.array([0, 1])
    vr.Variable(rows())[:, [index, [0]]]


def main(name):
    try:
        CASES[name]()
    except (vr.InputError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("nothing was refused")


@pytest.fixture(scope="module")
def told():
    """Return what each case printed; one process per case only where the first one ended early."""
    lines = _run(list(CASES))
    return {name: lines.get(name) or _run([name]).get(name, "the process ended") for name in CASES}


def _run(names):
    code = "import sys, tests.test_held_arrays as t\nfor n in sys.argv[1:]: print(n, end=': ', flush=True); t.main(n)"
    found = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=HANGS)
    return {name: line for name, line in (text.split(": ", 1) for text in found.stdout.splitlines()) if line}


READ_ONLY = "ValueError: assignment destination is read-only"
WANTED = {
    "indices_apart_move_their_axes_before_the_rows": "LoDError: sequence_pool, x: expected at least one level",
    "a_boolean_and_an_array_apart": "LoDError: sequence_pool, x: expected at least one level",
    "a_number_and_an_array_apart": "LoDError: sequence_pool, x: expected at least one level",
    "rows_of_a_gradient_that_were_handed_out": "ShapeError: parameters, entry 0, sgd, gradient",
    "columns_that_are_no_integers": "ShapeError: getitem",
    "rows_that_became_fewer": "ValueError: cannot resize this array",
} | dict.fromkeys(
    ["offsets_of_a_tensor_from_another_process", "offsets_of_a_copy", "listed_rows_of_a_copy",
     "a_plan_from_another_process", "steps_of_a_plan_from_another_process"], READ_ONLY,
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_change_behind_the_back_of_a_value_is_refused(told, name):
    wanted = WANTED.get(name, "LoDError: rows of a LoDTensor: expected")
    assert told[name].startswith(wanted)


def written_data_set(tmp_path):
    path = tmp_path / "walks.jsonl"
    path.write_text('{"text": [[0, 1], [2, 3]], "label": "up"}\n{"text": [[4, 5]], "label": "down"}\n')
    return vr.data.read_jsonl(path)


def gradient_of(parameter):
    (parameter * parameter).sum().backward()
    return parameter.grad


def of_embedding():
    embedding = vr.nn.Embedding(9, 4)
    embedding(np.array([3, 3])).sum().backward()
    return embedding.weight.grad


def momentum():
    p = parameter()
    optimizer = vr.optim.Momentum([p], 0.1)
    step(p, np.ones((100, 1), F))
    p.grad = np.ones((100, 1), F)
    optimizer.step()
    return optimizer._states[0][0].value.data


def fetched():
    with vr.program_guard() as program:
        y = vr.feed_data("x", [-1, 4], "float32") * 2.0
    return vr.Executor().run(program, {"x": np.ones((3, 4), F)}, [y])[0]


def persistable():
    with vr.program_guard() as program:
        parameter() * 2.0
    return next(iter(vr.Program.from_bytes(program.to_bytes()).persistables.values())).data


# Arrays that others have views of, or that kernels trust: by name, how to get one from a folder.
HANDED_OUT = {
    "rows": lambda _: rows().data,
    "rows of a copy": lambda _: rows().copy().data,
    "rows from lists": lambda _: vr.LoDTensor.from_sequences([[1.0, 2.0], [3.0]]).data,
    "a result": lambda _: (vr.Variable(rows()) * 2.0).value.data,
    "a result as an array": lambda _: np.asarray(vr.Variable(rows()) * 2.0),
    "rows of a step": lambda _: vr.segment_inputs(rows().data, vr.sort_by_seq_len(rows()), 0),
    "a large result": lambda _: (vr.Variable(np.ones((ROWS, ROWS), F)) @ np.ones((ROWS, 99), F)).value.data,
    "a gradient": lambda _: gradient_of(parameter()),
    "a sparse gradient": lambda _: of_embedding().value,
    "a parameter": lambda _: parameter().data,
    "a state of an optimizer": lambda _: momentum(),
    "what was fetched": lambda _: fetched(),
    "a persistable": lambda _: persistable(),
    "values of SelectedRows": lambda _: vr.SelectedRows([1], np.ones((1, 1), F), 3).value,
    "rows of a batch": lambda _: vr.data.batches([[1, 2], [3]], batch_size=2)[0].data,
    "labels of a batch": lambda _: vr.data.batches([[1, 2], [3]], [[1, 0], [2]], batch_size=2)[0][1].data,
    "rows of a data set": lambda folder: written_data_set(folder).sequences[0],
    "ids of a data set": lambda _: vr.data.from_texts(["ab"], ["x"]).sequences[0],
    "labels of a data set": lambda _: vr.data.from_texts(["ab"], ["x"]).labels,
    "labels of a part": lambda folder: written_data_set(folder).take([0]).labels,
}
X, LISTED = rows(), vr.SelectedRows(np.array([1, 1]), np.ones((2, 1), F), 3)
TRUSTED = {
    "offsets": lambda: X.structure.levels[0],
    "offsets in rows": lambda: X.structure.rows_of_level(0),
    "offsets of a slice": lambda: X.slice(0, 1, 2).structure.levels[0],
    "offsets of a result": lambda: (vr.Variable(X) * 2.0).value.structure.levels[0],
    "offsets of a batch": lambda: vr.data.batches(X, batch_size=2)[0].structure.levels[0],
    "offsets of a plan": lambda: vr.sort_by_seq_len(X).offsets,
    "ranks": lambda: vr.sort_by_seq_len(X).sorted_indices,
    "starts": lambda: vr.sort_by_seq_len(X).starts,
    "lengths": lambda: vr.sort_by_seq_len(X).seq_lens,
    "sizes of steps": lambda: vr.sort_by_seq_len(X).batch_sizes,
    "rows before": lambda: vr.sort_by_seq_len(X).previous_rows(),
    "rows after": lambda: vr.sort_by_seq_len(X).previous_rows(reverse=True),
    "listed rows": lambda: LISTED.rows,
    "listed rows of a sum": lambda: LISTED.merge().rows,
}


@pytest.mark.parametrize("name", HANDED_OUT)
def test_an_array_that_is_handed_out_keeps_its_memory(tmp_path, name):
    array = HANDED_OUT[name](tmp_path)
    with pytest.raises(ValueError, match="does not own its data"):
        array.resize((array.size + 1,), refcheck=False)


@pytest.mark.parametrize("name", TRUSTED)
def test_nobody_resizes_or_writes_to_an_array_that_kernels_trust(name):
    array = TRUSTED[name]()
    while isinstance(array, np.ndarray):
        with pytest.raises(ValueError, match="does not own its data"):
            array.resize((array.size + 1,), refcheck=False)
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.flags.writeable = True
        array = array.base
    assert isinstance(array, bytes)


@pytest.mark.parametrize("name", TRUSTED)
def test_what_is_done_to_an_array_that_kernels_trust_is_done_to_a_view(name):
    before = TRUSTED[name]().tolist()
    TRUSTED[name]().dtype = np.int8
    TRUSTED[name]().__setstate__((1, (1,), np.dtype(np.int64), False, np.array([10**9]).tobytes()))
    assert TRUSTED[name]().tolist() == before


def test_the_callers_array_may_take_another_shape():
    a = np.ones((ROWS, 4), F)
    x = vr.create_lod_tensor(a, [[500, 500]])
    a.shape = (1, 4 * ROWS)
    assert x.shape == (ROWS, 4)
    np.testing.assert_array_equal(np.asarray(pool(x, "sum")), np.full((2, 4), 500, F))
    a[...] = 2  # the memory is shared
    assert x.data[0, 0] == 2


@pytest.mark.parametrize(
    "index",
    [slice(None), (slice(None), 0), (slice(None), [0, 1]), (slice(None), [0], [1]), (slice(None), None, [0, 1], 0),
     (slice(None), Ellipsis, True), (slice(None), np.ones((2, 2), bool)), (slice(None), np.int64(1), np.array([0]))],
)  # fmt: skip
def test_rows_that_stay_in_front_keep_their_levels(index):
    x = vr.create_lod_tensor(np.arange(20.0).reshape(5, 2, 2), [[2, 3]])
    y = vr.Variable(x)[index]
    assert y.lod() == [[0, 2, 5]]
    np.testing.assert_array_equal(np.asarray(y), x.data[index])


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_every_kind_are_what_they_were(again):
    x = vr.create_lod_tensor(np.arange(5.0), [[2, 1], [2, 0, 3]])
    s, plan = vr.SelectedRows([3, 1], np.ones((2, 2), F), 5), vr.sort_by_seq_len(x)
    assert again(x).lod() == x.lod()
    assert again(x).data.tolist() == x.data.tolist()
    assert again(x.structure) == x.structure
    assert again(s).to_dense().tolist() == s.to_dense().tolist()
    assert list(again(plan)) == list(plan)
    pair = again([x, vr.LoDTensor(np.zeros(5), x.structure)])
    assert pair[0].structure is pair[1].structure, "shared, as before"
