"""A saved program as a C library: the same bits as Python, from any number of threads, and errors for damaged input.

`python -m tests.test_c_library 10000` compares the bits of as many ragged batches.
"""

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once
from varlen_rnn.c_library.counts import counts_of
from varlen_rnn.c_library.export import export
from varlen_rnn.cli import main
from varlen_rnn.program.boxes import sizes_of
from varlen_rnn.program.desc import of_var
from varlen_rnn.runtime.placeholder import Unbound

IDS, CLASSES, HIDDEN, CHECK = 50, 5, 16, 16
pytestmark = pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="no C compiler")


def struct(counts, arrays):
    """Return a struct of the library's header, given the names of its counts and arrays."""
    fields = [(name, ctypes.c_int64) for name in counts.split()]
    fields += [(name, ctypes.c_void_p) for name in arrays.split()]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


Batch = struct("rows sequences", "offsets ids h c scores h_n c_n")
Rows = struct("streams", "ids h c scores")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the program, the folder of the library, and the library."""
    return exported_to(tmp_path_factory.mktemp("library") / "labels")


def exported_to(folder):
    """Return the same, for a folder whose parent exists."""
    vr.manual_seed(0)
    embedding, lstm, linear = vr.nn.Embedding(IDS, 8), vr.nn.LSTM(8, HIDDEN), vr.nn.Linear(HIDDEN, CLASSES)
    norm = vr.nn.LayerNorm(HIDDEN)  # its kernel has memory on the stack; the kernel of softmax calls Numba's `reshape`
    with vr.program_guard() as program:
        ids = vr.feed_data("ids", [-1], "int64", lod_level=1)
        states = [vr.feed_data(name, [1, -1, HIDDEN], "float32") for name in ("h", "c")]
        y, (h_n, c_n) = lstm(embedding(ids), states)
        scores = vr.nn.functional.softmax(linear(norm(vr.sequence_pool(y, "last"))))
    scores.name, h_n.name, c_n.name = "scores", "h_n", "c_n"
    program = program.prune([scores, h_n, c_n])
    program.save(folder.parent / "model")
    states = "--state h=h_n --state c=c_n".split()
    assert main(["export", str(folder.parent / "model"), "--c", str(folder), *states]) == 0
    subprocess.run(["make", "-s", "all", "check"], cwd=folder, check=True)
    return program, folder, ctypes.CDLL(str(folder / "liblabels.so"))


def batch_of(number, most=6):
    """Return the lengths and the feeds of a random batch, with empty sequences."""
    lengths = number.integers(0, 8, number.integers(0, most)).tolist()
    states = number.standard_normal((2, 1, len(lengths), HIDDEN)).astype(np.float32)
    return lengths, number.integers(0, IDS, sum(lengths)), *states


def run(library, lengths, ids, h, c, replaced=()):
    """Return the code and the results of a run of the library; `replaced` replaces fields of the batch."""
    given = {"offsets": np.cumsum([0, *lengths]), "ids": ids, "h": h, "c": c}
    results = [np.zeros((len(lengths), CLASSES), np.float32), np.zeros_like(h), np.zeros_like(c)]
    given |= dict(zip(("scores", "h_n", "c_n"), results, strict=True))
    given |= {"rows": len(ids), "sequences": len(lengths)} | dict(replaced)
    return _called(library, "labels_run", "labels_workspace", Batch, given), results


def _called(library, function, size, kind, given):
    pointers = {name: value.ctypes.data if isinstance(value, np.ndarray) else value for name, value in given.items()}
    batch = kind(**pointers)
    getattr(library, size).restype = ctypes.c_int64
    workspace = np.empty(max(0, getattr(library, size)(ctypes.byref(batch))), np.uint8)
    pointer = ctypes.c_void_p(workspace.ctypes.data)
    return getattr(library, function)(ctypes.byref(batch), pointer, ctypes.c_int64(workspace.size))


def wanted(program, lengths, ids, h, c):
    """Return the results of Python."""
    feeds = {"ids": vr.create_lod_tensor(ids, [lengths]), "h": h, "c": c}
    return [np.asarray(value) for value in vr.Executor().run(program, feeds)]


def same(some, others):
    return all(a.tobytes() == b.tobytes() for a, b in zip(some, others, strict=True))


def check_batches(program, library, sizes):
    """Raise unless random batches, each of fewer sequences than its size, have the bits of Python."""
    number = np.random.default_rng(0)
    for most in sizes:
        batch = batch_of(number, most)
        code, results = run(library, *batch)
        assert code == 0
        assert same(results, wanted(program, *batch)), batch[0]


@pytest.mark.slow
def test_batches_have_the_bits_of_python_and_the_code_is_small(exported):
    program, folder, library = exported
    check_batches(program, library, [6] * 800 + [60] * 30 + [300] * 3)
    objects = [str(folder / name) for name in ("labels.o", "labels_kernels.o")]
    lines = subprocess.run(["size", *objects], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    assert sum(int(line.split()[3]) for line in lines) < 100 * 1024  # code and constants, without symbols' names
    listed = subprocess.run(["nm", "-D", folder / "liblabels.so"], capture_output=True, text=True, check=True).stdout
    called = set(re.findall(r" U (\w+)", listed))
    assert called <= {"memcpy", "memset", "sched_yield"}, called  # so it allocates no memory


def check_in_threads(run_one, batches, expected):
    """Raise unless four threads at once get the expected results of all batches, each twice."""
    failed = []

    def work():
        for batch, results in list(zip(batches, expected, strict=True)) * 2:
            code, found = run_one(batch)
            if code or not same(found, results):
                failed.append(batch)

    at_once(work, [()] * 4)
    assert not failed


@pytest.mark.slow
def test_threads_run_at_once(exported):
    program, _, library = exported
    number = np.random.default_rng(1)
    batches = [batch_of(number) for _ in range(100)]
    check_in_threads(lambda batch: run(library, *batch), batches, [wanted(program, *batch) for batch in batches])


@pytest.mark.slow
def test_steps_carry_states_as_a_stream_of_python(exported):
    program, _, library = exported
    stream, number = program.stream({"h": "h_n", "c": "c_n"}, num_sequences=3), np.random.default_rng(2)
    h, c, scores = (np.zeros(shape, np.float32) for shape in ((1, 3, HIDDEN), (1, 3, HIDDEN), (3, CLASSES)))
    for _ in range(5):
        ids = number.integers(0, IDS, 3)
        given = {"streams": 3, "ids": ids, "h": h, "c": c, "scores": scores}
        assert _called(library, "labels_step", "labels_step_workspace", Rows, given) == 0
        assert same([scores], stream({"ids": ids}))
        assert same([h, c], stream.states.values())
    before = h.copy()
    given["ids"] = np.array([0, IDS, 0])
    assert _called(library, "labels_step", "labels_step_workspace", Rows, given) == CHECK
    assert same([h], [before])


@pytest.mark.slow
def test_damaged_input_has_a_code(exported):
    _, _, library = exported
    lengths, ids, h, c = [2, 0, 3], np.arange(5), *np.zeros((2, 1, 3, HIDDEN), np.float32)
    library.labels_error.restype = ctypes.c_char_p
    damaged = {
        2: [{"ids": None}, {"sequences": -1}, {"rows": 2**62}, {"sequences": 0}, {"offsets": None}, {"scores": None}],
        3: [{"offsets": np.array(one)} for one in ([1, 2, 2, 5], [0, 3, 2, 5], [0, 2, 2, 2**62], [0, -9, 2, 5])],
        CHECK: [{"ids": np.array(one)} for one in ([0, 1, 2, 3, IDS], [0, -1, 2, 3, 4], [2**62, 0, 0, 0, 0])],
    }
    for expected, cases in damaged.items():
        for case in cases:
            assert run(library, lengths, ids, h, c, case)[0] == expected, case
    assert b"embedding" in library.labels_error(CHECK)
    assert run(library, lengths, ids, h, c)[0] == 0


@pytest.mark.slow
def test_a_self_test_compares_bits_with_those_of_python(exported, tmp_path):
    _, folder, library = exported
    library.labels_self_test_workspace.restype = ctypes.c_int64
    memory = np.empty(library.labels_self_test_workspace(), np.uint8)
    tested = lambda size: library.labels_self_test(ctypes.c_void_p(memory.ctypes.data), ctypes.c_int64(size))
    assert tested(memory.size) == 0
    assert tested(memory.size - 1) == 4
    other = shutil.copytree(folder, tmp_path / "other")
    weights = bytearray((other / "labels_weights.bin").read_bytes())
    for end in range(3, len(weights), 4):
        weights[end] ^= 0x80  # the sign of each float32
    (other / "labels_weights.bin").write_bytes(weights)
    done = subprocess.run(["make", "-s", "check"], cwd=other, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == "the results of the self-test have other bits than in Python\n"


FUZZ = """
#include "labels.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* Return memory that ends at a page that nobody may touch. */
static void *guarded(int64_t bytes) {
    int64_t page = sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    char *at = mmap(0, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + size, page, PROT_NONE)) exit(2);
    return at + size - bytes;
}
int main(void) {
    int64_t counts[5] = {0}, wild[] = {-1, 50, INT64_MAX, INT64_MIN, 7};
    srand(0);
    for (int n = 0; n < 1000; n++) {
        labels_batch batch = {rand() % 9, 1 + rand() % 5};
        int64_t *offsets = guarded(8 * (batch.sequences + 1)), *ids = guarded(8 * batch.rows);
        for (int64_t i = 0; i <= batch.sequences; i++) offsets[i] = batch.rows * i / batch.sequences;
        for (int64_t i = 0; i < batch.rows; i++) ids[i] = rand() % 50;
        if (rand() % 2) offsets[rand() % (batch.sequences + 1)] = wild[rand() % 5];
        if (rand() % 2 && batch.rows) ids[rand() % batch.rows] = wild[rand() % 5];
        batch.ids_offsets = offsets, batch.ids = ids;
        STATES
        batch.scores = guarded(RESULT);
        int64_t bytes = labels_workspace(&batch);
        void *workspace = guarded(bytes);
        int code = labels_run(&batch, workspace, bytes);
        if (labels_run(&batch, workspace, bytes - 1) == 0) return 3;
        counts[code == 0 ? 0 : code == 3 ? 1 : code == 16 ? 2 : 3]++;
    }
    printf("%d %d %d %d\\n", (int)counts[0], (int)counts[1], (int)counts[2], (int)counts[3]);
    return 0;
}
"""


def check_damaged(folder, states, of_result):
    """Run `FUZZ` with sanitizers on a library.

    `states` has the bytes of each state; `of_result` says, in C, how many bytes the scores have.
    """
    arrays = "".join(
        f"batch.{name} = guarded({size} * batch.sequences), batch.{name}_n = guarded({size} * batch.sequences);"
        for name, size in states.items()
    )
    text = FUZZ.replace("STATES", arrays).replace("RESULT", of_result).replace("labels", folder.name)
    (folder / "fuzz.c").write_text(text)
    options = "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Werror -o fuzz fuzz.c".split()
    linked = *(f"{folder.name}{end}" for end in (".c", "_kernels.o", "_weights.S")), "-lm"
    built = subprocess.run(["cc", *options, *linked], cwd=folder, capture_output=True, text=True)
    if "cannot find -l" in built.stderr or "libasan" in built.stderr:
        pytest.skip("the C compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run(["./fuzz"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    right, offsets, ids, others = map(int, done.stdout.split())
    assert (right > 150, offsets > 150, ids > 50, others) == (True, True, True, 0)


@pytest.mark.slow
def test_sanitizers_find_nothing_in_damaged_batches(exported):
    check_damaged(exported[1], {"h": 64, "c": 64}, "20 * batch.sequences")


@pytest.mark.slow
def test_a_tagger_of_matrix_states(tmp_path):
    vr.manual_seed(0)
    embedding, layer, linear = vr.nn.Embedding(IDS, 8), vr.nn.GatedDeltaNet(8, 16, num_heads=2), vr.nn.Linear(16, 5)
    shapes, folder = {"s": (1, -1, 2, 8, 8), "w": (1, -1, 3, 48)}, tmp_path / "tagger"
    with vr.program_guard() as program:
        ids = vr.feed_data("ids", [-1], "int64", lod_level=1)
        states = tuple(vr.feed_data(name, list(shape), "float32") for name, shape in shapes.items())
        y, (s_n, w_n) = layer(embedding(ids), states)
        scores = linear(y)
    scores.name, s_n.name, w_n.name = "scores", "s_n", "w_n"
    program = program.prune([scores, s_n, w_n])
    export(program, folder, {"s": "s_n", "w": "w_n"})
    subprocess.run(["make", "-s", "all", "check"], cwd=folder, check=True)
    library, number = ctypes.CDLL(str(folder / "libtagger.so")), np.random.default_rng(3)

    def arrays(count):
        return [number.standard_normal((1, count, *shape[2:])).astype(np.float32) for shape in shapes.values()]

    def run_one(batch):
        lengths, ids, s, w = batch
        results = [np.zeros((len(ids), 5), np.float32), np.zeros_like(s), np.zeros_like(w)]
        given = {"offsets": np.cumsum([0, *lengths]), "ids": ids, "s": s, "w": w, "rows": len(ids)}
        given |= {"sequences": len(lengths)} | dict(zip(("scores", "s_n", "w_n"), results, strict=True))
        kind = struct("rows sequences", "offsets ids s w scores s_n w_n")
        return _called(library, "tagger_run", "tagger_workspace", kind, given), results

    def wanted_of(lengths, ids, s, w):
        feeds = {"ids": vr.create_lod_tensor(ids, [lengths]), "s": s, "w": w}
        return [np.asarray(value) for value in vr.Executor().run(program, feeds)]

    batches = []
    for most in [9] * 97 + [90] * 3:
        lengths = number.integers(0, most, number.integers(0, 7)).tolist()
        batches.append((lengths, number.integers(0, IDS, sum(lengths)), *arrays(len(lengths))))
    check_in_threads(run_one, batches, [wanted_of(*batch) for batch in batches])
    s, w, scores = *(np.zeros_like(array) for array in arrays(3)), np.zeros((3, 5), np.float32)
    stream = program.stream({"s": "s_n", "w": "w_n"}, num_sequences=3)
    for _ in range(5):
        given = {"streams": 3, "ids": number.integers(0, IDS, 3), "s": s, "w": w, "scores": scores}
        assert _called(library, "tagger_step", "tagger_step_workspace", struct("streams", "ids s w scores"), given) == 0
        assert same([scores], stream({"ids": given["ids"]}))
        assert same([s, w], stream.states.values())
    check_damaged(folder, {"s": 512, "w": 576}, "20 * batch.rows")


def test_an_operator_that_cannot_be_bound_is_refused_by_name(tmp_path, capsys):
    with vr.program_guard() as program:
        ids = vr.feed_data("ids", [-1], "int64", lod_level=1)
        found = vr.sequence_erase(ids, [0])
    program.prune([found]).save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--c", str(tmp_path / "erased")]) == 2
    assert "sequence_erase" in capsys.readouterr().err
    assert not (tmp_path / "erased").exists()


def test_an_operator_that_allocates_is_refused_by_name(tmp_path, monkeypatch):
    def object_of(processor, codes):  # compiling again would take 10 seconds
        return b"", {name: ["NRT_MemInfo_alloc_aligned"] for name in codes.values() if "ctc_cpu" in name}

    monkeypatch.setattr("varlen_rnn.c_library.export.object_of", object_of)
    with vr.program_guard() as program:
        logits, labels = (
            vr.feed_data("x", [-1, 4], "float32", lod_level=1),
            vr.feed_data("y", [-1], "int64", lod_level=1),
        )
        found = vr.nn.functional.ctc_loss(logits, labels)
    with pytest.raises(vr.ProgramError, match=r"'ctc_loss', whose kernel \w+ allocates memory \(fetch what"):
        export(program.prune([found]), tmp_path / "ctc", {})
    assert not (tmp_path / "ctc").exists()


def test_a_model_that_calls_no_kernel_for_an_empty_batch(tmp_path):
    """`-Werror` refuses variables that only calls use."""
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 2], "float32", lod_level=1)
        y = x + x
    export(program.prune([y]), tmp_path / "sums", {})
    subprocess.run(["make", "-s", "all", "check"], cwd=tmp_path / "sums", check=True)


def test_products_in_bfloat16_are_refused_by_name(tmp_path, capsys):
    with vr.program_guard() as program:
        found = vr.nn.Linear(3, 2, precision="bf16")(vr.feed_data("x", [-1, 3], "float32"))
    program.prune([found]).save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--c", str(tmp_path / "rounded")]) == 2
    assert "expected products in 'fp32', got 'matmul' in 'bf16'" in capsys.readouterr().err
    assert not (tmp_path / "rounded").exists()


def test_any_names_of_feeds_become_names_of_c_and_any_nan_is_a_nan(tmp_path):
    shapes = dict.fromkeys(["a.b", "a_b", "x*/y/*"], (-1, 2)) | dict.fromkeys(
        ["new", "linux", "batch", "WEIGHTS"], (2, 2)
    )
    linear = vr.nn.Linear(2, 2)
    linear.bias.data[0] = np.nan
    with vr.program_guard() as program:
        feeds = [vr.feed_data(name, shape, "float32", int("*" in name)) for name, shape in shapes.items()]
        found = list(map(linear, feeds))
        for number, y in enumerate(found):
            y.name = f"y{number}"
    export(program.prune(found), tmp_path / "test", {})
    source = (tmp_path / "test" / "test.c").read_text()
    assert source.count("0x7fc00000") == 3 * 3 + 4 * 2
    (tmp_path / "test" / "test.c").write_text(source.replace("0x7fc00000", "0xffc00001"))
    subprocess.run(["make", "-s", "check"], cwd=tmp_path / "test", check=True)
    (tmp_path / "test" / "test.c").write_text(source.replace("0x7fc00000", "0x7f800000"))  # infinity
    done = subprocess.run(["make", "-s", "check"], cwd=tmp_path / "test", capture_output=True, text=True)
    assert done.stdout == "the results of the self-test have other bits than in Python\n"
    if shutil.which("g++"):
        (tmp_path / "test" / "includes.cpp").write_text('#include "test.h"\nint main() { return 0; }\n')
        subprocess.run(["g++", "-Wall", "-Werror", "-fsyntax-only", "includes.cpp"], cwd=tmp_path / "test", check=True)


def test_programs_without_sequences_compile_and_states_have_an_axis_of_streams(tmp_path):
    linear = vr.nn.Linear(3, 3)
    for name, size in (("begin", -1), ("fixed", 2)):
        with vr.program_guard() as program:
            found = linear(vr.feed_data("x", [size, 3], "float32") + vr.feed_data("h", [size, 3], "float32"))
        program, folder, states = program.prune([found]), tmp_path / name, {"h": found.name}
        if size == 2:
            with pytest.raises(
                vr.InputError, match=r"state h: expected exactly one unknown size, of streams, got \[2, 3"
            ):
                export(program, folder, states)
            states = {}
        export(program, folder, states)
        subprocess.run(["make", "-s", "check"], cwd=folder, check=True)


def test_a_folder_whose_files_would_be_mixed_up_is_refused(tmp_path):
    with vr.program_guard() as program:
        found = vr.feed_data("x", [-1, 2], "float32") * 2.0
    for name in ("main", "a-b"):
        with pytest.raises(vr.InputError, match="expected a folder whose name is a name in C"):
            export(program.prune([found]), tmp_path / name, {})


def test_sizes_that_must_be_equal_are_one_count():
    def run(structure, counts):
        (a, *_), (b, levels, _), (c, *_) = sizes_of(structure, counts)
        if a[0] != levels[0] or c[1] != b[1]:
            raise Unbound("sizes differ")

    with vr.program_guard() as program:
        vr.feed_data("a", [-1, 2], "float32")
        vr.feed_data("b", [-1, -1], "float32", lod_level=1)
        vr.feed_data("c", [-1, -1], "float32")
    declared = {var.name: of_var(var) for var in program.desc.blocks[0].vars if var.name in "abc"}
    found = counts_of(declared, run)
    assert found.names == ["a_size", "rows", "b_size_1", "c_size_0"]
    assert found.which[("b", "sequences", 0)] == 0
    assert found.which[("c", "size", 1)] == found.which[("b", "size", 1)]
    assert found.box.counts_at((4, 9, 5, 7)) == (4, 2, 9, 5, 4, 7, 5)


if __name__ == "__main__":
    count = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        program, _, library = exported_to(Path(place) / "labels")
        check_batches(program, library, ([6] * 95 + [60] * 4 + [300]) * (count // 100))
    print(f"{count // 100 * 100} ragged batches have the bits of Python")
