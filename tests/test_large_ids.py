"""Integers of 2**63 and more, such as hashes: they stay exact, or are refused with advice, but become no floats."""

import gzip
import json

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.data import read, read_csv, read_jsonl

HASH = 2**63 + 5
ADVICE = r"expected an integer below 2\*\*[56]3, or a float, got 9223372036854775813.*hash.*token"


@pytest.mark.parametrize(
    "make",
    [
        lambda: vr.Variable([HASH, 5]),
        lambda: vr.LoDTensor([[HASH], [5]]),
        lambda: vr.create_lod_tensor([HASH, 5], [[2]]),
        lambda: vr.create_lod_tensor(([HASH], [np.int64(5)]), [[2]]),
        lambda: vr.LoDTensor.from_sequences([[HASH, 5]]),
        lambda: vr.LoDTensor.from_sequences([[HASH], [], [5]]),
        lambda: vr.LoDTensor.from_sequences([np.array([HASH], np.uint64), np.array([5])]),
        lambda: vr.interop.from_arrow(of_arrow([HASH, 5]).slice(0, 1).select(["x"])),
    ],
)
def test_rows_of_large_ids_are_exact(make):
    tensor = make()
    assert tensor.dtype == np.uint64
    assert np.asarray(tensor).reshape(-1).tolist() == [HASH, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: vr.Variable([HASH, -5]),
        lambda: vr.LoDTensor.from_sequences([[HASH, -5]]),
        lambda: vr.LoDTensor.from_sequences([[HASH], [-5]]),
    ],
)
def test_no_type_holds_large_and_negative_integers(make):
    with pytest.raises(vr.DTypeError, match=r"got -5 together with integers of 2\*\*63 or more \(write floats if"):
        make()


def test_measurements_beside_large_integers_are_floats():
    assert vr.Variable([0.5, HASH]).dtype == vr.Variable([1e19, 5]).dtype == np.float64
    assert vr.LoDTensor.from_sequences([[0.5], np.array([HASH], np.uint64)]).dtype == np.float64


def saved(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def of_pandas(values):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"x": [values, [6]], "y": ["a", "b"]})


def of_polars(values):
    polars = pytest.importorskip("polars")
    return polars.DataFrame({"x": [values, [6]], "y": ["a", "b"]}, schema={"x": polars.List(polars.UInt64), "y": str})


def of_arrow(values):
    pa = pytest.importorskip("pyarrow")
    return pa.table({"x": pa.array([values, [6]], pa.list_(pa.uint64())), "y": ["a", "b"]})


@pytest.mark.parametrize("values", [[HASH, 5], [HASH], [HASH, None]])
@pytest.mark.parametrize("frame", [of_pandas, of_polars, of_arrow])
def test_lists_of_large_ids_in_a_frame_are_refused(frame, values):
    with pytest.raises(vr.InputError, match=f"frame, row 0, column 'x': {ADVICE}"):
        read(frame(values), sequence="x", label="y", missing="error" if None not in values else "zero")


def test_a_column_of_large_ids_is_no_measurement(tmp_path):
    pandas = pytest.importorskip("pandas")
    for column in (np.array([1, HASH], np.uint64), np.array([-1, HASH], object)):
        frame = pandas.DataFrame({"id": [0, 0], "x": column})
        with pytest.raises(vr.InputError, match=f"frame, row 1, column 'x': {ADVICE}"):
            read(frame, id="id")
    for gap in ("", "7,\n"):
        path = saved(tmp_path, "long.csv", f"id,x\n{gap}7,{HASH}\n")
        with pytest.raises(vr.InputError, match=f"field 'x': {ADVICE}"):
            read(path, id="id", missing="zero")
    assert read(saved(tmp_path, "long.csv", "id,x\n7,1e19\n"), id="id").sequences[0].tolist() == [[np.float32(1e19)]]


@pytest.mark.parametrize("values", [[HASH, 5], [[1, HASH], [0.5, 2]], [HASH, None]])
def test_large_ids_in_files_of_text_are_refused(tmp_path, values):
    path = saved(tmp_path, "a.jsonl", json.dumps({"x": values, "y": "a"}))
    with pytest.raises(vr.InputError, match=f"line 1, field 'x': {ADVICE}"):
        read_jsonl(path, "x", "y", missing="zero")
    path = saved(tmp_path, "a.csv", f'x,y\n"{json.dumps(values)}",a\n')
    with pytest.raises(vr.InputError, match=f"line 2, field 'x': {ADVICE}"):
        read_csv(path, "x", "y", tokens="list", missing="zero")


def test_large_ids_of_parquet_are_exact_or_refused(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "ids.parquet"
    parquet.write_table(of_arrow([HASH, 5]), path)
    assert [ids.tolist() for ids in read(path, sequence="x").sequences] == [[HASH, 5], [6]]
    parquet.write_table(of_arrow([HASH, None]), path)
    with pytest.raises(vr.InputError, match=f"row 0, column 'x': {ADVICE}"):
        read(path, sequence="x", missing="zero")


@pytest.mark.parametrize("values", [[2**53, 5], [[2**63 - 1, 1], [5, 5]], [-(2**60)]])
def test_integers_that_floats_merge_are_refused_in_lists_of_files(tmp_path, values):
    path = saved(tmp_path, "a.jsonl", json.dumps({"x": values, "y": "a"}))
    with pytest.raises(vr.InputError, match=r"line 1, field 'x': expected an integer below 2\*\*53, or a float"):
        read_jsonl(path, "x", "y")


def test_a_packed_file_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"text,label\na,b\n"))
    (tmp_path / "a.csv.gz").write_bytes(b"")
    with pytest.raises(vr.InputError, match=r"a.csv: expected text in UTF-8, got a gzip file .unpack it with gunzip"):
        read(tmp_path / "a.csv")
    with pytest.raises(vr.InputError, match=r"got '.gz' .unpack it with gunzip -k"):
        read(tmp_path / "a.csv.gz")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_of_another_encoding_is_named(tmp_path, encoding):
    path = tmp_path / "wide.csv"
    path.write_bytes("text,label\nä,b\n".encode(encoding))
    message = rf"wide.csv, line 1: expected text in UTF-8, got {encoding.upper()} \(convert it with iconv -f"
    for reader in (read, read_csv, read_jsonl):
        with pytest.raises(vr.InputError, match=message):
            reader(path)
    path.write_bytes("text,label\nä,b\n".encode("latin1"))
    with pytest.raises(vr.InputError, match=r"got the byte 0xe4 .*Latin-1"):
        read(path)


def test_entries_of_parquet_are_read_again_only_for_a_large_number(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    path, array, made = tmp_path / "numbers.parquet", np.array, []
    parquet.write_table(of_arrow([4, None]), path)
    monkeypatch.setattr(np, "array", lambda given, *kind: made.append(kind) or array(given, *kind))
    read(path, sequence="x", missing="zero")
    assert (np.float64,) in made
    assert (object,) not in made
