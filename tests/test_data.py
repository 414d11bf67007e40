"""The data folder: every sequence once, in an order one can repeat; data sets that stay what they are; clear errors."""

import pydoc
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import varlen_rnn as vr
from varlen_rnn import LoDTensor, create_lod_tensor
from varlen_rnn.data import (
    Dataset,
    batches,
    datasets,
    documentation_sentences,
    from_texts,
    read_csv,
    read_jsonl,
    standard_library_functions,
    unicode_names,
)
from varlen_rnn.errors import DTypeError, InputError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.rows.plan import sort_by_seq_len

SEEDS = np.random.default_rng(7)
LENGTHS = np.minimum(SEEDS.lognormal(3, 1, 1000).astype(int), 300)
# Every row carries the number of its sequence, so that a row in the wrong place shows.
SEQUENCES = [np.full((n, 2), k, np.float32) for k, n in enumerate(LENGTHS)]


def visited(made):
    return [made.indices(number).tolist() for number in range(len(made))]


def padding(made):
    reports = [sort_by_seq_len(x).padding() for x in made]
    return sum(report.padded_rows for report in reports) / sum(report.rows for report in reports)


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=40),
    size=st.integers(1, 12),
    by_rows=st.booleans(),
    shuffle=st.booleans(),
    bucket=st.booleans(),
    as_tensor=st.booleans(),
)
def test_every_sequence_comes_once_with_its_rows_and_labels(lengths, size, by_rows, shuffle, bucket, as_tensor):
    arrays = [np.arange(n) + 100 * k for k, n in enumerate(lengths)]
    data = np.concatenate([np.zeros(0, int), *arrays])
    sequences = create_lod_tensor(data, [lengths]) if as_tensor else arrays
    limit = {"max_tokens": size} if by_rows else {"batch_size": size}
    numbers = np.arange(len(lengths))
    seen = []
    for x, labels in batches(sequences, numbers, shuffle=shuffle, bucket=bucket, **limit):
        rows = x.to_sequences()
        assert len(rows) == len(labels) > 0
        for row, label in zip(rows, labels, strict=True):
            np.testing.assert_array_equal(row, arrays[label])
        if by_rows:
            assert x.shape[0] <= size or len(rows) == 1
        else:
            assert len(rows) <= size
        seen += labels.tolist()
    assert sorted(seen) == numbers.tolist()
    if not shuffle:
        assert seen == (sorted(seen, key=lambda k: (lengths[k], k)) if bucket else numbers.tolist())


@pytest.mark.parametrize("bucket", [False, True])
@pytest.mark.parametrize("limit", [{"batch_size": 16}, {"max_tokens": 500}])
def test_the_order_is_a_function_of_seed_and_epoch(limit, bucket):
    made = batches(SEQUENCES, shuffle=True, bucket=bucket, seed=3, epoch=5, **limit)
    again = batches(SEQUENCES, shuffle=True, bucket=bucket, seed=3, **limit)
    first = visited(made)
    assert first == visited(again.at_epoch(5)) == visited(again.at_epoch(2).at_epoch(5))
    assert first != visited(again.at_epoch(6))
    assert first != visited(batches(SEQUENCES, shuffle=True, bucket=bucket, seed=4, epoch=5, **limit))
    # A stopped run goes on with the batch that it had reached.
    for number, x in enumerate(made.at_epoch(5)):
        np.testing.assert_array_equal(x.data, again.at_epoch(5)[number].data)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "bucket": True}, {"weights": np.ones(300)}])
def test_each_pass_has_the_order_of_the_next_epoch(options):
    sequences = [[k] for k in range(300)]
    made = batches(sequences, np.arange(300), batch_size=16, seed=3, epoch=4, **options)
    for epoch in (4, 5, 6):
        batch = 0
        for x, labels in made:
            assert made.epoch == epoch
            np.testing.assert_array_equal(made.indices(batch), labels)
            np.testing.assert_array_equal(made[batch][0].data, x.data)
            np.testing.assert_array_equal(made.at_epoch(epoch)[batch][1], labels)
            batch += 1
        assert batch == len(made)
        assert f"epoch {epoch}" in repr(made)
    resumed = made.at_epoch(7)
    assert [labels.tolist() for _, labels in made] == [labels.tolist() for _, labels in resumed]
    for rank in (0, 1):
        part = made.part(rank, 2)
        assert part.epoch == made.epoch == 7
        for epoch in (7, 8):
            assert [l.tolist() for _, l in part] == [l.tolist() for _, l in made.at_epoch(epoch).part(rank, 2)]


def test_a_pass_keeps_its_order_while_another_begins():
    made = batches([[k] for k in range(100)], batch_size=7, shuffle=True)
    first, second = iter(made), iter(made)
    assert [x.data.tolist() for x in first] == visited_rows(made.at_epoch(0))
    assert [x.data.tolist() for x in second] == visited_rows(made.at_epoch(1))
    pairs = [(x.data.tolist(), y.data.tolist()) for x, y in zip(made, made, strict=True)]
    assert [list(one) for one in zip(*pairs, strict=True)] == [visited_rows(made.at_epoch(n)) for n in (2, 3)]


def visited_rows(made):
    return [x.data.tolist() for x in made]


@pytest.mark.parametrize("options", [{}, {"bucket": True}])
def test_passes_that_draw_nothing_are_the_same(options):
    made = batches(SEQUENCES, batch_size=16, **options)
    assert visited(made) == visited(made)
    assert made.epoch == 0


@pytest.mark.parametrize("limit", [{"batch_size": 16}, {"max_tokens": 500}])
def test_buckets_reduce_padding_and_stay_random(limit):
    plain = batches(SEQUENCES, shuffle=True, **limit)
    bucketed = batches(SEQUENCES, shuffle=True, bucket=True, **limit)
    ordered = batches(SEQUENCES, bucket=True, **limit)
    assert padding(plain) > 2 > 1.25 > padding(bucketed) >= padding(ordered)
    # Batches are shuffled after the sort: the mean length of a batch tells nothing of that of the next.
    means = np.array([len(x.data) / len(x) for x in bucketed])
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.5


def test_drop_last_leaves_out_the_unfilled_batch_only():
    sequences = [[k] * 2 for k in range(10)]
    assert [len(x) for x in batches(sequences, batch_size=4, drop_last=True)] == [4, 4]
    assert [len(x) for x in batches(sequences, batch_size=5, drop_last=True)] == [5, 5]
    assert [len(x.data) for x in batches(sequences, max_tokens=6, drop_last=True)] == [6, 6, 6]
    assert [len(x) for x in batches(sequences, batch_size=4, shuffle=True, bucket=True, drop_last=True)] == [4, 4]


def test_a_tensor_keeps_the_levels_below_the_cut():
    x = create_lod_tensor(np.arange(15), [[3, 1, 0, 2], [3, 2, 4, 1, 2, 3]])
    wanted = x.to_sequences()
    made = batches(x, batch_size=3, shuffle=True, seed=1)
    for number, part in enumerate(made):
        for got, index in zip(part.to_sequences(), made.indices(number), strict=True):
            assert [row.tolist() for row in got] == [row.tolist() for row in wanted[index]]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_row_labels_stay_with_their_rows_and_share_the_structure(as_tensor):
    sequences = LoDTensor.from_sequences(SEQUENCES) if as_tensor else SEQUENCES
    labels = [rows[:, 0].astype(np.int64) for rows in SEQUENCES]
    for x, y in batches(sequences, labels, max_tokens=400, shuffle=True):
        assert y.structure is x.structure
        np.testing.assert_array_equal(x.data[:, 0], y.data)


def test_batches_are_copies():
    x = LoDTensor(np.zeros(3), [[0, 1, 3]])
    next(iter(batches(x, batch_size=2))).data[:] = 1
    assert not x.data.any()


def test_nothing_gives_no_batches():
    for sequences in ([], LoDTensor(np.zeros((0, 3)), [[0]])):
        for limit in ({"batch_size": 2}, {"max_tokens": 2}):
            made = batches(sequences, [], shuffle=True, bucket=True, drop_last=True, **limit)
            assert len(made) == 0
            assert list(made) == []


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (InputError, "exactly one of them, got neither", {}),
        (InputError, "exactly one of them, got both", {"batch_size": 1, "max_tokens": 1}),
        (ShapeError, "batch_size: expected at least 1", {"batch_size": 0}),
        (ShapeError, "labels: expected 2 entries, one per sequence", {"batch_size": 1, "labels": [1, 2, 3]}),
        (ShapeError, "labels, sequence 1: expected 1 label", {"batch_size": 1, "labels": [[1, 2], [3, 4]]}),
        (ShapeError, "sequence 1: expected rows of shape", {"batch_size": 1, "sequences": [[1], [[2]]]}),
        (DTypeError, "sequence 1: expected data type int64", {"batch_size": 1, "sequences": [[1], [2.0]]}),
        (DTypeError, "sequence 0: expected numbers", {"batch_size": 1, "sequences": [["a"]]}),
        (DTypeError, "dataset.sequences", {"batch_size": 1, "sequences": Dataset("x", [], None, [], [])}),
        (LoDError, "a LoDTensor with levels", {"batch_size": 1, "sequences": LoDTensor(np.zeros(3))}),
        (ShapeError, "seed: expected at least 0", {"batch_size": 1, "seed": -1}),
    ],
)
def test_bad_arguments_are_named(error, message, arguments):
    with pytest.raises(error, match=message):
        batches(**{"sequences": [[1, 2], [3]], **arguments})


def test_there_is_no_batch_behind_the_last():
    with pytest.raises(OutOfRangeError, match="less than 1"):
        batches([[1]], batch_size=1)[1]


def labelled(data):
    return [(ids.tobytes(), label) for ids, label in zip(data.sequences, data.labels, strict=True)]


@pytest.fixture(scope="module")
def names():
    return unicode_names()


def test_unicode_names_are_those_of_this_python_without_numbered_signs(names):
    if unicodedata.unidata_version == "14.0.0":
        assert len(names) == 29978
    assert 29_000 < len(names) < 40_000
    assert len(names.classes) == 26
    texts = ["".join(names.vocabulary[k] for k in ids) for ids in names.sequences]
    assert not any(block in text for text in texts for block in ("CJK", "HANGUL SYLLABLE", "TANGUT", "NUSHU"))
    for text, label in list(zip(texts, names.labels, strict=True))[::97]:
        assert unicodedata.category(unicodedata.lookup(text)) == names.classes[label]


def test_documentation_sentences_are_words_and_none_comes_twice():
    data = documentation_sentences()
    assert 1500 < len(data) < 6000
    assert len({ids.tobytes() for ids in documentation_sentences(min_count=1).sequences}) == len(data)
    assert data.lengths.min() >= 3
    assert data.lengths.max() <= 200
    assert "statement" in data.vocabulary
    assert len(documentation_sentences(max_vocabulary=100).vocabulary) == 100
    assert set(data.labels) == set(range(len(data.classes)))


def test_standard_library_functions_are_functions_and_no_tests():
    data = standard_library_functions(["json", "unittest"], limit=30)
    again = standard_library_functions(["json", "unittest"], limit=30)
    assert data.classes == ["json", "unittest"]
    assert np.bincount(data.labels).max() <= 30
    assert list(map(np.ndarray.tolist, data.sequences)) == list(map(np.ndarray.tolist, again.sequences))
    for ids in data.sequences:
        assert "".join(data.vocabulary[k] for k in ids).startswith(("def ", "async def "))


def test_a_python_without_sources_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(InputError, match=r"got no function .*documentation_sentences"):
        standard_library_functions()
    with pytest.raises(InputError, match="packages: expected a package in"):
        standard_library_functions(["json"])


def test_files_that_do_not_parse_are_skipped(monkeypatch, tmp_path):
    package = tmp_path / "good"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text("class A:\n    def f(self):\n        def g(): pass\n        return g\n")
    (package / "a.py").write_text("print 1")
    (package / "b.py").write_bytes(b"# \xff")
    (package / "tests" / "t.py").write_text("def never(): pass")
    monkeypatch.setattr(datasets.sysconfig, "get_path", lambda name: str(tmp_path))
    data = standard_library_functions(["good"])
    assert ["".join(data.vocabulary[k] for k in ids) for ids in data.sequences] == [
        "def f(self):\n    def g(): pass\n    return g"
    ]


def test_split_is_deterministic_and_loses_nothing(names):
    train, test = names.split(0.1, seed=4)
    assert len(test) == round(0.1 * len(names))
    assert len(train) + len(test) == len(names)
    assert sorted(labelled(train) + labelled(test)) == sorted(labelled(names))
    np.testing.assert_array_equal(names.split(0.1, seed=4)[1].labels, test.labels)
    assert not np.array_equal(names.split(0.1, seed=5)[1].labels, test.labels)


def test_texts_become_ids_and_unknown_tokens_zero():
    data = from_texts(["To be", "", "be"], np.array([10, 9, 10]), tokens="words")
    assert [ids.tolist() for ids in data.sequences] == [[2, 1], [], [1]]
    assert data.classes == ["9", "10"]
    assert data.labels.tolist() == [1, 0, 1]
    assert data.encode("be or not to be").tolist() == [1, 0, 0, 2, 1]
    other = from_texts(["be what"], ["9"], tokens="words", vocabulary=data.vocabulary, classes=data.classes)
    assert other.sequences[0].tolist() == [1, 0]
    assert other.labels.tolist() == [0]
    assert from_texts([["x y", "z"]]).encode(["z", "x y", "x"]).tolist() == [2, 1, 0]
    assert len(from_texts([])) == 0


def test_jsonl_reads_each_kind_of_sequence(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes('\ufeff{"text": "ab\u2028", "label": true}\r\n\r\n{"text": "", "label": false}'.encode())
    data = read_jsonl(path)
    assert data.lengths.tolist() == [3, 0]
    assert data.classes == ["false", "true"]
    path.write_text('{"s": ["to", "be"]}\n{"s": []}\n')
    assert [ids.tolist() for ids in read_jsonl(path, "s", None).sequences] == [[2, 1], []]
    path.write_text('{"s": [], "label": 1}\n{"s": [[1, 2.5]], "label": 0}\n')
    rows = read_jsonl(path, "s").sequences
    assert [r.shape for r in rows] == [(0, 2), (1, 2)]
    assert rows[1].tolist() == [[1, 2.5]]
    assert rows[1].dtype == np.float32


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InputError, "at least one record"),
        ('{"text": "a", "label": 1}\n{"text": ', InputError, "line 2: expected a JSON object"),
        ('{"text": "a", "label": 1}\n\n[1]', DTypeError, "line 3: expected a JSON object"),
        ('{"text": "a", "label": 1}\n{"label": 2}', InputError, "line 2, `sequence`: expected the field 'text'"),
        ('{"text": "a"}', InputError, "line 1, `label`.*label=None"),
        ('{"text": 5, "label": 1}', DTypeError, "line 1, field 'text': expected a text"),
        ('{"text": [1, "a"], "label": 1}', DTypeError, "line 1, field 'text'"),
        ('{"text": "a", "label": 1}\n{"text": [1], "label": 1}', DTypeError, "line 2.*expected text, as in .*line 1"),
        ('{"text": "a", "label": 1}\n{"text": [], "label": 1}', DTypeError, "line 2, field 'text': expected text"),
        ('{"text": [[1, 2], [3]], "label": 1}', ShapeError, "line 1, field 'text', row 1: expected 2 numbers"),
        ('{"text": [[1]], "label": 1}\n{"text": [[1, 2]], "label": 1}', ShapeError, "line 2.*row 0: expected 1 num"),
        ('{"text": [[1, "a"]], "label": 1}', DTypeError, "row 0: expected numbers"),
        ('{"text": [[[1]]], "label": 1}', DTypeError, "row 0: expected numbers"),
        ('{"text": [NaN], "label": 1}', InputError, "line 1, field 'text', row 0: expected numbers, got a missing"),
        ('{"text": [1e39], "label": 1}', InputError, "line 1, field 'text': expected finite"),
        (f'{{"text": [1{"0" * 400}], "label": 1}}', InputError, "line 1, field 'text': expected finite"),
        ('{"text": "a", "label": null}', InputError, "line 1, field 'label': expected a label, got no label"),
        ('{"text": "a", "label": 1.5}\n{"text": "a", "label": "b"}', DTypeError, "line 1, field 'label': expected a"),
        ('{"text": "a", "label": 1}\n{"text": "a", "label": "1"}', DTypeError, "line 2, field 'label': expected type"),
    ],
)
def test_malformed_jsonl_names_line_and_field(tmp_path, text, error, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        read_jsonl(path)
    assert "bad.jsonl" in str(caught.value)


def test_csv_reads_quotes_lists_and_marks(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes('\ufefflabel;text\r\n10;"a;\nb"\r\n\r\n9;\r\n'.encode())
    data = read_csv(path, delimiter=";")
    assert data.lengths.tolist() == [4, 0]
    assert (data.classes, data.labels.tolist()) == (["9", "10"], [1, 0])
    path.write_text('x,label\n"[1, 2]",a\n[],b\n')
    assert [rows.tolist() for rows in read_csv(path, "x", tokens="list").sequences] == [[[1.0], [2.0]], []]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected at least one record, got no record .is the file empty?"),
        (b"text,label\n", "at least one record"),
        (b"txt,label\na,1\n", "line 1, `sequence`: expected the field 'text', got only the fields 'txt', 'label'"),
        (b"text,label\na,1\nb\n", "line 3, `label`: expected the field 'label'"),
        (b"text,label\na,b,1\n", "line 2: expected 2 fields, got 3 .*quotes"),
        (b'text,label\n"a"b,1\n', "line 2: expected valid CSV"),
        (b"text,label\na,1\n\xff,1\n", "line 3: expected text in UTF-8, got the byte 0xff"),
        (b"text,label\n" + b"a" * 140_000 + b",1\n", "line 2: expected valid CSV, .*field_size_limit"),
    ],
)
def test_malformed_csv_names_line_and_field(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message) as caught:
        read_csv(path)
    assert "bad.csv" in str(caught.value)


def test_csv_lists_that_are_none_are_named(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("text,label\n[1],a\nhello,b\n")
    with pytest.raises(InputError, match="line 3, field 'text': expected a JSON list, got 'hello'"):
        read_csv(path, tokens="list")


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("labels: expected 2 labels, one per text, got 1", {"labels": [1]}),
        ("labels, entry 1: expected one of the 1 classes, got 'b'", {"labels": ["a", "b"], "classes": ["a"]}),
        ("vocabulary, entry 0: expected '<unk>'", {"vocabulary": ["a"]}),
        ("expected different tokens, got 'a' more than once", {"vocabulary": ["<unk>", "a", "a"]}),
        ("tokens: expected one of", {"tokens": "bytes"}),
        ("texts, entry 1: expected text, as in texts, entry 0", {"texts": ["a", ["b"]]}),
        ("texts: expected a list of texts", {"texts": "ab"}),
    ],
)
def test_bad_texts_are_named(message, arguments):
    with pytest.raises(InputError, match=message):
        from_texts(**{"texts": ["a", "b"], **arguments})


def test_numbers_have_no_vocabulary():
    data = from_texts([[1, 2], [3]])
    with pytest.raises(InputError, match="expected a data set with a vocabulary"):
        data.encode("a")


def test_batches_keep_what_they_were_given():
    lists, tensor = np.arange(12.0).reshape(6, 2), LoDTensor(np.arange(12.0).reshape(6, 2), [[0, 2, 6]])
    labels = np.arange(2)
    of_lists, of_tensor = batches([lists], batch_size=1), batches(tensor, labels, batch_size=2)
    lists.shape, labels.shape = (1, 12), (1, 2)
    tensor.set_lod([[0, 6]])
    tensor.data.shape = (1, 12)
    assert (of_lists[0].lod(), of_lists[0].shape) == ([[0, 6]], (6, 2))
    x, numbers = of_tensor[0]
    assert (x.lod(), x.shape, numbers.tolist()) == ([[0, 2, 6]], (6, 2), [0, 1])


def test_labels_of_rows_keep_their_levels():
    targets = LoDTensor(np.arange(6), [[0, 2, 6]])
    made = batches(LoDTensor(np.zeros(6), [[0, 2, 6]]), targets, batch_size=2)
    targets.set_lod([[0, 6]])
    x, y = made[0]
    assert (y.lod(), y.structure is x.structure) == ([[0, 2, 6]], True)


def test_matrices_are_arrays_and_masked_entries_an_error():
    matrix = np.asarray([[1.0, 2.0], [3.0, 4.0]]).view(np.matrix)
    assert type(batches([matrix, matrix], batch_size=2)[0].data) is np.ndarray
    whole, masked = (np.ma.masked_array(np.ones(3), mask) for mask in ([False] * 3, [False, True, False]))
    assert type(batches([whole], batch_size=1)[0].data) is np.ndarray
    for arguments in ({"sequences": [masked]}, {"sequences": [[1]] * 3, "labels": masked}):
        with pytest.raises(DTypeError, match="without masked entries"):
            batches(batch_size=1, **arguments)
    with pytest.raises(DTypeError, match="without masked entries"):
        LoDTensor(masked)


@pytest.mark.parametrize(
    ("indices", "taken"),
    [([2, -1], [2, 3]), (np.array([False, True, True, False]), [1, 2]), ([True, False, False, False], [0]), ([], []),
     (np.array([3, 0], np.uint8), [3, 0])],
)  # fmt: skip
def test_a_data_set_takes_indices_or_a_mask(indices, taken):
    data = Dataset("four", [np.array([k]) for k in range(4)], np.arange(4), [], [])
    assert [int(ids[0]) for ids in data.take(indices).sequences] == taken
    assert data.take(indices).labels.tolist() == taken


def test_labels_of_rows_are_split_with_their_sequences():
    sequences = [np.arange(k) for k in range(8)]
    data = Dataset("tagged", sequences, [10 * sequence for sequence in sequences], [], ["a"])
    parts = data.split(0.25)
    assert sorted(len(sequence) for part in parts for sequence in part.sequences) == list(range(8))
    for part in parts:
        assert [label.tolist() for label in part.labels] == [(10 * sequence).tolist() for sequence in part.sequences]
        x, y = batches(part.sequences, part.labels, batch_size=8)[0]
        assert (y.structure is x.structure, y.data.tolist()) == (True, (10 * x.data).tolist())


@pytest.mark.parametrize("indices", [[2.7], [True], [4], [-5], [[0]], 0, ["a"], [2**70], None, [[0], [1, 2]]])
def test_a_data_set_refuses_other_indices(indices):
    data = Dataset("four", [np.array([k]) for k in range(4)], None, [], [])
    with pytest.raises(InputError, match="take, indices"):
        data.take(indices)


def test_data_is_a_module():
    import varlen_rnn.data as d

    assert d is vr.data is sys.modules["varlen_rnn.data"]
    assert (d.batches.__module__, d.columns.__name__) == ("varlen_rnn.data.batches", "varlen_rnn.data.columns")
    assert "batches" in dir(d)
    assert "Batches of sequences" in pydoc.plain(pydoc.render_doc(d))


def test_data_reloads():
    """In a process of its own, where nothing else holds the functions of before."""
    program = "import importlib, varlen_rnn as vr; assert callable(importlib.reload(vr.data)); vr.data.read_csv"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_the_former_name_of_feed_data_warns():
    with vr.program_guard() as program:
        with pytest.warns(DeprecationWarning, match=r"vr.data\(...\) is now called vr.feed_data\(...\)") as warned:
            x = vr.data("x", [-1, 2], dtype="float32")
        vr.feed_data("y", [-1, 2], "float32")
    assert warned[0].filename == __file__
    assert (x.shape, program.feed_names) == ((-1, 2), ["x", "y"])


def test_targets_of_another_length_are_other_inputs():
    X, targets = [np.zeros((3, 2), np.float32)], [np.zeros(2, np.int64)]
    with pytest.raises(vr.ShapeError, match=r"labels, sequence 0: expected 3 labels, .* got 2 \(.*others=\[targets\]"):
        vr.data.batches(X, targets, batch_size=1)
    x, more = vr.data.batches(X, others=[targets], batch_size=1)[0]
    assert (len(x.data), len(more.data)) == (3, 2)
