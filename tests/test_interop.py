"""Arrow, Awkward, DLPack and memory maps: what is right, what is refused, and what is not copied, by its address."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.errors import DTypeError, InputError, LoDError, ShapeError

pa = pytest.importorskip("pyarrow")

NUMBERS = [[1.0, 2.0], [], [3.0, 4.0, 5.0]]
ROWS = pa.list_(pa.list_(pa.float32(), 2))


def address(array):
    return array.__array_interface__["data"][0]


def of_rows(kind=ROWS):
    return pa.array([[[1, 2]], [], [[3, 4], [5, 6]], [[7, 8]]], kind)


# Arrow.


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.int32(), pa.float16(), pa.float32(), pa.float64()], ids=str
)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_arrow_of_numbers(kind, make):
    array = pa.array([[1, 2], [], [3]], make(kind))
    x = vr.from_arrow(array)
    assert x.lod() == [[0, 2, 2, 3]]
    assert x.data.tolist() == [1, 2, 3]
    assert x.dtype == kind.to_pandas_dtype()
    assert address(x.data) == array.values.buffers()[1].address
    assert not x.data.flags.writeable


def test_arrow_of_rows_and_levels():
    array = pa.array([[[[1, 2]], []], [], [[[3, 4], [5, 6]]]], pa.list_(ROWS))
    x = vr.from_arrow(array)
    assert x.lod() == [[0, 2, 2, 3], [0, 1, 1, 3]]
    assert x.data.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert address(x.data) == array.values.values.values.buffers()[1].address


@pytest.mark.parametrize("kind", [ROWS, pa.large_list(pa.list_(pa.int64(), 2))], ids=str)
def test_slices_of_arrow(kind):
    array = of_rows(kind)
    whole = vr.from_arrow(array)
    for first, count in ((0, 4), (1, 2), (2, 2), (3, 0), (0, 0), (4, 0)):
        x = vr.from_arrow(array.slice(first, count))
        assert x.to_sequences()[:] == [] if not count else True
        for one, other in zip(x.to_sequences(), whole.to_sequences()[first : first + count], strict=True):
            assert np.array_equal(one, other)
            assert not len(one) or address(one) == address(other)


def test_lists_of_one_size_above_others():
    array = pa.array([[[1, 2], [3]], [[], [4]], [[5], []]], pa.list_(pa.list_(pa.int32()), 2))
    for first in (0, 1):
        x = vr.from_arrow(array[first:])
        assert x.lod()[0] == list(range(0, 2 * (3 - first) + 1, 2))
        assert x.data.tolist() == [1, 2, 3, 4, 5][3 * first :]


def test_more_dimensions():
    array = pa.array([[[[1, 2], [3, 4], [5, 6]]], []], pa.list_(pa.list_(pa.list_(pa.float64(), 2), 3)))
    assert vr.from_arrow(array).shape == (1, 3, 2)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(3, 2, 2))
    column = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), tensors)
    for part, count in ((column, 3), (column[1:], 2)):
        x = vr.from_arrow(part)
        assert x.shape == (count, 2, 2)
        assert np.array_equal(x.data, np.arange(12.0).reshape(3, 2, 2)[3 - count :])


def test_chunks_tables_and_views():
    array = of_rows()
    one = vr.from_arrow(pa.chunked_array([array]))
    assert address(one.data) == array.values.values.buffers()[1].address
    two = vr.from_arrow(pa.chunked_array([array[:1], array[2:]]))
    assert two.lod() == [[0, 1, 3, 4]]
    assert vr.from_arrow(pa.chunked_array([], ROWS)).shape == (0, 2)
    for table in (pa.table({"a": array}), pa.record_batch({"a": array})):
        assert np.array_equal(vr.from_arrow(table).data, one.data)
    for kind in (pa.list_view(pa.float64()), pa.large_list_view(pa.float64())):
        assert vr.from_arrow(pa.array(NUMBERS, kind)).data.tolist() == [1, 2, 3, 4, 5]
        assert vr.from_arrow(pa.array(NUMBERS, kind)[1:]).lod() == [[0, 0, 3]]
    assert vr.from_arrow(pa.array([[True], [False, True]])).data.tolist() == [True, False, True]


def test_other_libraries_of_arrow():
    found = {}
    if (pl := _library("polars")) is not None:
        series = pl.Series(NUMBERS)
        found["polars"] = vr.from_arrow(series)
        assert address(found["polars"].data) == address(series.explode(empty_as_null=False).to_numpy(allow_copy=False))
        found["a frame of polars"] = vr.from_arrow(pl.DataFrame({"a": series}))
    if (pd := _library("pandas")) is not None:
        found["pandas"] = vr.from_arrow(pd.Series(pa.array(NUMBERS), dtype=pd.ArrowDtype(pa.list_(pa.float64()))))
    if (duckdb := _library("duckdb")) is not None:
        found["duckdb"] = vr.from_arrow(duckdb.sql("select unnest([[1.0, 2], [], [3, 4, 5]])::double[] as a"))
    for name, x in found.items():
        assert x.to_sequences() is not None, name
        assert x.lod() == [[0, 2, 2, 5]], name
        assert x.data.tolist() == [1, 2, 3, 4, 5], name


def _library(name):
    try:
        return __import__(name)
    except ImportError:
        return None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: [[1.0]], DTypeError, "an object with __arrow_c_array__"),
        (lambda: pa.array([1.0]), LoDError, "expected lists of numbers, got double"),
        (lambda: pa.array(["a"]), LoDError, "got string"),
        (lambda: pa.array([["a"]]), DTypeError, "lists of string .*from_texts"),
        (lambda: pa.array([[1], None]), LoDError, "level 0, sequence 1: expected a value, got null"),
        (lambda: pa.array([[1, None]]), LoDError, "number 1: expected a value, got null"),
        (lambda: pa.array([[[1, 2], None]], ROWS), LoDError, "row 1: expected a value, got null"),
        (lambda: pa.array([[[1]], [None]]), LoDError, "level 1, sequence 1"),
        (lambda: pa.array([[True, None]]), LoDError, "row 1"),
        (
            lambda: pa.table({"a": [[1]], "b": [[1]]}),
            ShapeError,
            r"expected a table of one column, got the columns \['a', 'b'\]",
        ),
        (lambda: pa.array([[{"a": 1}]]), DTypeError, "lists of struct"),
        (lambda: pa.array([["a"]]).cast(pa.list_(pa.dictionary(pa.int32(), pa.string()))), DTypeError, "dictionary"),
        (lambda: pa.array([[1]], pa.list_(pa.timestamp("s"))), DTypeError, "timestamp"),
    ],
)
def test_what_arrow_has_and_we_have_not(make, error, message):
    with pytest.raises(error, match=message):
        vr.from_arrow(make())


def test_nulls_outside_of_a_slice():
    assert vr.from_arrow(pa.array([None, [1], [2, 3], None])[1:3]).data.tolist() == [1, 2, 3]


def shapes(rng):
    yield vr.create_lod_tensor(rng.standard_normal(5), [[2, 0, 3]])
    yield vr.create_lod_tensor(rng.standard_normal((5, 3)).astype(np.float32), [[2, 1], [2, 0, 3]])
    yield vr.create_lod_tensor(np.arange(30).reshape(5, 2, 3), [[0, 5]])
    yield vr.create_lod_tensor(np.zeros((0, 3)), [[0, 0]])
    yield vr.create_lod_tensor(np.zeros((0, 3)), [[]])
    yield vr.create_lod_tensor(rng.standard_normal((10, 3))[::2], [[1, 4]])


def test_there_and_back():
    ak = pytest.importorskip("awkward")
    for x in shapes(np.random.default_rng(0)):
        for to, back in ((vr.to_arrow, vr.from_arrow), (vr.to_awkward, vr.from_awkward)):
            there = to(vr.Variable(x))
            again = back(there)
            assert again.lod() == x.lod()
            assert again.dtype == x.dtype
            assert np.array_equal(again.data, x.data)
            if x.data.size and x.data.flags.c_contiguous:
                assert address(again.data) == address(x.data)
        assert vr.to_arrow(x).to_pylist() == ak.to_list(vr.to_awkward(x))


def test_what_cannot_go_there():
    for to in (vr.to_arrow, vr.to_awkward):
        with pytest.raises(LoDError, match="a LoDTensor with levels"):
            to(vr.LoDTensor(np.zeros(3)))
        with pytest.raises(DTypeError, match="a LoDTensor or a Variable, got ndarray"):
            to(np.zeros(3))
        with pytest.raises(ShapeError, match="at least one number per row"):
            to(vr.create_lod_tensor(np.zeros((3, 0)), [[3]]))


def test_memory_maps(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(20, dtype=np.float32).reshape(5, 4))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    x = vr.create_lod_tensor(rows, [[2, 0, 3]])
    assert address(x.data) == address(rows)
    copied = vr.create_lod_tensor(np.array(rows), [[2, 0, 3]])
    lstm = vr.nn.LSTM(4, 5)
    assert np.array_equal(lstm(x)[0], lstm(copied)[0])
    assert np.array_equal(vr.sequence_pool(x, "max"), vr.sequence_pool(copied, "max"))
    column = vr.to_arrow(vr.create_lod_tensor(np.ones((10**5, 2), np.float32), [[10**5]]))
    schema = pa.schema({"a": column.type})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write(pa.record_batch({"a": column}))
    with pa.memory_map(str(tmp_path / "a.arrow")) as source:
        before = pa.total_allocated_bytes()
        x = vr.from_arrow(pa.ipc.open_file(source).read_all().column("a"))
        assert pa.total_allocated_bytes() - before < 10**4, "what the file is made of, and no rows"
        assert np.array_equal(vr.sequence_pool(x, "sum"), [[10**5, 10**5]])


# Awkward.


def test_awkward():
    ak = pytest.importorskip("awkward")
    rows = np.arange(12.0).reshape(6, 2)
    whole = ak.unflatten(rows, [1, 0, 3, 2])
    x = vr.from_awkward(whole)
    assert x.lod() == [[0, 1, 1, 4, 6]]
    assert address(x.data) == address(rows)
    part = vr.from_awkward(whole[2:])
    assert part.lod() == [[0, 3, 5]]
    assert address(part.data) == address(rows[1:])
    assert vr.from_awkward(whole[[3, 0]]).data.tolist() == rows[[4, 5, 0]].tolist()
    assert vr.from_awkward(ak.Array([[[1], []], []])).lod() == [[0, 2, 2], [0, 1, 1]]
    two = ak.to_regular(ak.Array([[[1], [2, 3]], [[], [4]]]), axis=1)
    assert vr.from_awkward(two).lod() == [[0, 2, 4], [0, 1, 3, 3, 4]]
    for wrong, message in (
        (ak.Array([1, 2]), "expected lists of numbers"),
        (ak.Array([["a"]]), "lists of numbers"),
        (ak.Array([[1, None]]), r"number 1: expected a value, got None \(ak.drop_none .*fill_none"),
        (ak.Array([[1], None]), "level 0, sequence 1: expected a value, got None"),
        (ak.Array([[[1], []], [[2], None]]), "level 1, sequence 3: expected a value, got None"),
        (ak.to_regular(ak.Array([[[1, 2]], [[3, None]]]), axis=2), "number 3: expected a value, got None"),
        (ak.from_iter([[1, None]], highlevel=True)[:, ::-1], "number 0: expected a value"),
        (ak.Array([[{"a": 1}]]), "to_regular"),
        ([1], "an awkward.Array, got list"),
    ):
        with pytest.raises(InputError, match=message):
            vr.from_awkward(wrong)


def test_option_types_of_awkward_in_which_nothing_is_missing(tmp_path):
    ak, pa = pytest.importorskip("awkward"), pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for lists in ([[1, 2], [], [3]], [[[1], [2, 3]], [], [[4]]]):
        column, path = pa.array(lists), tmp_path / "lists.parquet"
        parquet.write_table(pa.table({"x": column}), path)
        wanted = vr.from_arrow(column)
        for array in (ak.from_parquet(path)["x"], ak.from_arrow(pa.chunked_array([column[:1], column[1:]]))):
            assert "?" in str(array.type)
            found = vr.from_awkward(array)
            assert (found.lod(), found.data.tolist()) == (wanted.lod(), wanted.data.tolist())
    pairs = pa.array([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], pa.list_(pa.list_(pa.float64(), 2)))
    assert vr.from_awkward(ak.from_arrow(pairs)).shape == (3, 2)
    masked = ak.mask(ak.Array([[1.0], [2.0, 3.0]]), [True, True])
    assert vr.from_awkward(masked).lod() == [[0, 1, 3]]
    with pytest.raises(InputError, match="level 0, sequence 1"):
        vr.from_awkward(ak.mask(masked, [True, False]))


# DLPack, and the arrays of others.


def test_ours_as_dlpack():
    x = vr.create_lod_tensor(np.arange(6.0).reshape(3, 2), [[1, 2]])
    for value in (x, vr.Variable(x)):
        array = np.from_dlpack(value)
        assert address(array) == address(x.data)
        assert value.__dlpack_device__() == array.__dlpack_device__()
    with pytest.raises(BufferError, match="detach"):
        np.from_dlpack(vr.Variable(x, requires_grad=True))
    frozen = vr.LoDTensor(np.broadcast_to(np.ones(2), (3, 2)))
    assert not np.from_dlpack(frozen).flags.writeable


def test_dlpack_of_others():
    class Exporter:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    rows = np.arange(6.0).reshape(3, 2)
    assert address(vr.create_lod_tensor(Exporter(rows), [[1, 2]]).data) == address(rows)
    assert address(vr.Variable(Exporter(rows[::2])).value.data) == address(rows)


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    rows = torch.arange(6.0).reshape(3, 2)
    x = vr.create_lod_tensor(rows, [[1, 2]])
    assert address(x.data) == rows.data_ptr()
    assert torch.from_dlpack(x).data_ptr() == rows.data_ptr()
    for wrong in (rows.clone().requires_grad_(), rows.bfloat16(), rows.to("meta")):
        with pytest.raises(InputError):
            vr.create_lod_tensor(wrong, [[1, 2]])
    with pytest.raises(ShapeError, match="detach"):
        vr.create_lod_tensor(rows.clone().requires_grad_(), [[1, 2]])


def test_without_the_libraries(monkeypatch):
    import sys

    for name, call in (("pyarrow", vr.from_arrow), ("pyarrow", vr.to_arrow), ("awkward", vr.from_awkward)):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(vr.ProgramError, match=f"{name}: expected an installed package.*pip install"):
                call(vr.create_lod_tensor(np.zeros(2), [[2]]))
