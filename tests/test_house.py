"""The house keeps its order: imports go down, oracles stand alone, names of the contract exist, ruff is content."""

import ast
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import varlen_rnn as vr
from tests import size
from tests.each import check_each
from varlen_rnn.tape.operator import OPERATORS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "varlen_rnn"

# A module may import from the floors below its own, and from its own folder.
_PLAN = (ROOT / "docs" / "architecture.md").read_text().partition("## Floors")[2]
FLOORS = [line.split() for line in _PLAN.split("```text\n")[1].split("```")[0].splitlines()]
LLVM_ALLOWED = {
    "cuda_intrinsics.py",
    "environment.py",
    "level.py",
    "numba_internals.py",
    "pairwise.py",
    "activations.py",
    "amx.py",
    "bfloat16.py",
    "rounding.py",
    "vectors.py",
    "tile.py",
    "pairs.py",
    "writer.py",
    "sync.py",
}
# The modules of Numba that its documentation names for users; all else stands in one file.
NUMBA_PUBLIC = {"numba", "numba.types", "numba.extending", "numba.core.cgutils", "numba.core.errors"}
NUMBA_ALLOWED = {"attention", "cells", "kernels", "linear_attention", "products", "recurrence", "runtime"}


# The modules whose names users complete; what of theirs is public stands in `__all__`.
PUBLIC = [
    "varlen_rnn",
    *(f"varlen_rnn.{name}" for name in ("baselines", "cells", "data", "distributed", "interop", "metrics")),
    *(f"varlen_rnn.{name}" for name in ("nn", "nn.functional")),
    *(f"varlen_rnn.{name}" for name in ("onnx", "optim", "optim.lr_scheduler", "sklearn", "torch", "training")),
]


def part_of(path):
    """Return the module or folder of the top level that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports(path):
    """Return the full names of all modules that a file imports, wherever in it."""
    return imported(path.read_text(), path.relative_to(ROOT).parent.parts)


@functools.cache
def imported(source, package):
    """Return the full names of all that the source of a module imports, whose package has a name of these parts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}


def files_imported(path):
    """Return the modules that a file asks for: of `from package import name`, that of the name where there is one."""
    names = [name if name in MODULES else name.rpartition(".")[0] for name in imports(path)]
    return {name for name in names if name in MODULES}


def circle(graph):
    """Return the nodes of a circle in a graph, a dict of node to nodes, in the order of the arrows; [] without one."""
    ended = set()

    def search(node, path):
        if node in path:
            return path[path.index(node) :]
        found = next((c for other in sorted(graph[node] - ended) if (c := search(other, [*path, node]))), [])
        ended.add(node)
        return found

    return next((found for node in graph if node not in ended and (found := search(node, []))), [])


def test_every_room_has_its_floor():
    rooms = {part_of(path) for path in FILES}
    assert rooms == {room for floor in FLOORS for room in floor}


def test_no_circle_between_files():
    graph = {name: files_imported(path) - {name} for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 300, "the imports are found"
    assert circle(graph) == []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_go_down_the_floors():
    check_each(FILES, check_imports)


def check_imports(path):
    floor = {part: number for number, parts in enumerate(FLOORS) for part in parts}
    part = part_of(path)
    for name in imports(path):
        if name.startswith("varlen_rnn."):
            target = name.split(".")[1]
            target = target if target in floor else "__init__"
            assert target == part or floor[target] < floor[part], f"{part} imports {name}"
            if part in ("tape", "program"):
                assert target not in ("kernels", "products"), "the tape and its programs know no kernels"
            if part == "cells" and target != "cells":
                assert (
                    name.split(".")[1] in ("errors", "frozen")
                    or "kernels." in name
                    or name.startswith(("varlen_rnn.runtime.jit.", "varlen_rnn.runtime.numba_internals."))
                ), name
                assert "kernels." not in name or name.split(".")[2] in ("activations", "functions", "symbol"), name
        top = name.split(".")[0]
        if top == "numba":
            assert part in NUMBA_ALLOWED, f"{part} imports {name}"
        if top == "llvmlite":
            assert path.name in LLVM_ALLOWED, f"{path.name} imports {name}"
        if top == "pickle":
            assert path.name == "numba_internals.py", "no pickle"


INTERNALS = PACKAGE / "runtime" / "numba_internals.py"
INTRINSICS = PACKAGE / "runtime" / "cuda_intrinsics.py"
# Internal names of Numba and llvmlite that objects of public ones lead to.
INTERNAL_NAMES = set(
    """_compiler _lock _nrt _rebuild _reduce call_conv cudadrv ffi fndesc get_pointer_to_function
    has_dynamic_globals no_cfunc_wrapper no_cpython_wrapper overloads pipeline_class run_frontend target_context
    targetoptions""".split()
)


def _first_name(node):
    """Return the first name of `a.b.c`, or None if it begins with no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", None)


def internals_of_numba(source):
    """Return the internal names of Numba that the source of a module imports, or uses as attributes or options."""
    found = []
    for name in imported(source, ()):
        is_public = name in NUMBA_PUBLIC or name.rpartition(".")[0] in NUMBA_PUBLIC
        if name.startswith("numba.") and (not is_public or name in ("numba.core", "numba.np")):
            found.append(name)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            if _first_name(node) == "numba" and ast.unparse(node).startswith(("numba.core", "numba.np")):
                found.append(ast.unparse(node))
            names = [node.attr]
        elif isinstance(node, ast.keyword):
            names = [node.arg]
        elif isinstance(node, ast.Dict):
            names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        else:
            names = [node.name] if isinstance(node, ast.alias) else []
        found += INTERNAL_NAMES.intersection(names)
    return found


def test_internals_of_numba_stand_in_one_file():
    others = [path for folder in ("benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*.py")]
    judged = {*FILES, *others} - {INTERNALS, INTRINSICS}
    used = {path: internals_of_numba(path.read_text()) for path in judged}
    assert {path: names for path, names in used.items() if names} == {}


def test_numba_cuda_stands_in_one_file_beside_its_intrinsics():
    users = [
        path for path in FILES if any(re.match(r"numba\.cuda\b|numba_cuda\b|cuda\b", name) for name in imports(path))
    ]
    assert users == [PACKAGE / "runtime" / "cuda.py", INTRINSICS]


def test_internals_of_numba_are_found():
    assert internals_of_numba("from numba.core import cgutils\nfrom numba import cuda, njit, types") == []
    assert internals_of_numba("from numba.core.errors import TypingError\nimport numba.extending") == []
    for source in (
        "from numba.core import caching",
        "import numba.core.compiler",
        "from numba.np.numpy_support import from_dtype",
        "import numba\nnumba.core.config",
        "from llvmlite.binding import ffi",
        "kernel.overloads",
        "njit(_nrt=False)",
        'njit(**{"pipeline_class": None})',
    ):
        assert internals_of_numba(source), source
    assert len(internals_of_numba(INTERNALS.read_text())) > 15


def test_relative_imports_have_full_names():
    source = "from .. import kernels\nfrom ..kernels import pool\nfrom . import variable\nfrom .variable import apply"
    wanted = ["kernels", "kernels.pool", "tape.variable", "tape.variable.apply"]
    assert imported(source, ("varlen_rnn", "tape")) == [f"varlen_rnn.{name}" for name in wanted]


def test_operators_stand_under_ops():
    """Counts of metrics stand with the metrics, and a program's edges, which have no kernels, with the program."""
    check_each(FILES, check_operators)


def check_operators(path):
    if part_of(path) not in ("metrics", "ops", "steps"):
        if path.parts[-2:] not in (("program", "feed.py"), ("varlen_rnn", "__init__.py")):
            assert "varlen_rnn.tape.declare.operator" not in imports(path)
        floors = {name.split(".")[1] for name in imports(path) if name.startswith("varlen_rnn.")}
        assert not {"kernels", "tape"} <= floors, "the tape meets kernels"


def test_files_that_name_operators_are_in_the_page():
    page = (ROOT / "docs" / "architecture.md").read_text()
    sentence = page.partition("These files name\n")[2].partition("Programs also know")[0]
    listed = set(re.findall(r"`(\w+/\w+\.py)`", sentence))
    found = {path.relative_to(PACKAGE).as_posix() for path in FILES if named_operators(path.read_text())}
    assert {name for name in found if not name.startswith(("cells/", "ops/"))} == listed


def named_operators(source):
    """Return the operators whose type a source compares, or asks a decorator or a table for."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides):
                found.update(constant for side in sides for constant in ast.walk(side))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "says":
            found.update(node.args)
        elif isinstance(node, (ast.Dict, ast.Set)):
            names = node.keys if isinstance(node, ast.Dict) else node.elts
            if len(names) > 1 and {getattr(name, "value", None) for name in names} <= OPERATORS.keys():
                found.update(names)
    return {getattr(node, "value", None) for node in found} & OPERATORS.keys() - {"feed", "fetch", "detach"}


def test_a_file_that_names_operators_is_found():
    for source in (
        'op.type == "matmul"',
        '"add" != record.op.type',
        'op.type in ("add", "sub")',
        '@says("add")\ndef f(): 0',
    ):
        assert named_operators(source), source
    assert named_operators('rules = {"matmul": 1, "recurrent": 2}') == {"matmul", "recurrent"}
    assert not named_operators('apply("matmul", x)\nop.type == "feed"\nnames = {"matmul": 1, "none of ours": 2}')


def test_oracles_import_nothing_of_ours():
    paths = list((ROOT / "tests" / "oracles").glob("*.py"))
    assert len(paths) > 4, "the oracles are found"
    for path in paths:
        assert not [name for name in imports(path) if name.startswith("varlen_rnn")], path
        operators = [node.op for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.BinOp)]
        assert not [op for op in operators if isinstance(op, ast.MatMult)], f"{path}: products.matmul"


def test_names_of_the_contract():
    names = """create_lod_tensor LoDTensor sort_by_seq_len segment_inputs init_memories concat_outputs SelectedRows
    Variable no_grad grad_enabled set_num_threads manual_seed LoDError nn.LSTM nn.GRU nn.RNN nn.Module nn.Embedding
    nn.Linear nn.Dropout nn.Sequential optim.SGD optim.Momentum optim.Adagrad optim.Adam data.batches save load"""
    for name in names.split():
        value = vr
        for part in name.split("."):
            value = getattr(value, part)


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_shows_public_names_only(name):
    module = pytest.importorskip(name)
    more = {part for part in ("kernels", "onnx", "sklearn", "torch") if module is vr and part in vars(vr)}
    assert dir(module) == sorted({*module.__all__, *more})
    for shown in dir(module):
        getattr(module, shown)


def test_errors_are_value_errors():
    for name in ("LoDError", "ShapeError", "DTypeError", "OutOfRangeError", "ProgramError", "CheckpointError"):
        assert issubclass(getattr(vr, name), ValueError)


@pytest.mark.skipif(shutil.which("ruff", path=str(Path(sys.executable).parent)) is None, reason="ruff is not installed")
@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff(arguments):
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    folders = ["varlen_rnn", "tests", "examples", "benchmarks", "docs"]
    result = subprocess.run([ruff, *arguments, *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_modules_functions_and_signatures_stay_small():
    found = size.modules()
    assert not size.long_functions(found), "over 60 lines of code"
    assert len(size.long_modules(found)) <= 4, "over 350 lines of code"
    assert len(size.wide_functions(found)) <= 8, "over 10 arguments"
