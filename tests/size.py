"""How large the package is: ``python -m tests.size`` prints the counts, and the worst cases.

Lines of code are lines with a token that is neither a comment nor part of a docstring. The arguments of a function
include its keyword-only arguments, but not `self`.
"""

import ast
import importlib
import inspect
import io
import pkgutil
import re
import tokenize
from collections import Counter
from pathlib import Path

import varlen_rnn

PACKAGE = Path(varlen_rnn.__file__).parent
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Module:
    """A file of the package: its text, tree and the numbers of its lines of code."""

    def __init__(self, path):
        self.name = path.relative_to(PACKAGE).as_posix()
        text = path.read_text()
        self.lines = text.count("\n")
        self.tree = ast.parse(text)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        kept = {
            line for token in tokens if token.type not in _BLANK for line in range(token.start[0], token.end[0] + 1)
        }
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, _DOCUMENTED)]
        self.docstrings = [node.body[0] for node in nodes if _has_docstring(node)]
        self.code = kept - {line for text in self.docstrings for line in range(text.lineno, text.end_lineno + 1)}
        self.functions = [node for node in nodes if isinstance(node, _FUNCTION)]
        self.words = Counter(re.findall(r"\w+", text))

    def size(self, node):
        """Return how many lines of code `node` has."""
        return sum(line in self.code for line in range(node.lineno, node.end_lineno + 1))


def _has_docstring(node):
    return bool(node.body) and ast.get_docstring(node, clean=False) is not None


def arguments(function):
    """Return how many arguments `function` takes, without `self`."""
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def is_private(function):
    """Return whether the name of `function` has one leading underscore."""
    return function.name.startswith("_") and not function.name.startswith("__")


def modules():
    """Return the modules of the package, sorted by name."""
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def long_modules(found, above=350):
    """Return (lines of code, name) of the modules with more than `above` lines of code, largest first."""
    return sorted(((len(module.code), module.name) for module in found if len(module.code) > above), reverse=True)


def long_functions(found, above=60):
    """Return (lines of code, place) of the functions with more than `above` lines of code, largest first."""
    sizes = [
        (module.size(function), f"{module.name}:{function.lineno} {function.name}")
        for module in found
        for function in module.functions
    ]
    return sorted((size for size in sizes if size[0] > above), reverse=True)


def public_code():
    """Return the files and names of all functions that an `__all__` lists, and of the methods of listed classes.

    Of a folder that needs a package that is not installed, such as PyTorch, these are all names without underscores.
    """
    places = set()
    for _, name, is_package in pkgutil.walk_packages([str(PACKAGE)], "varlen_rnn."):
        if not is_package or name == "varlen_rnn.kernels.cuda":
            continue
        try:
            room = importlib.import_module(name)
        except ImportError:
            for module in map(Module, PACKAGE.joinpath(*name.split(".")[1:]).rglob("*.py")):
                places |= {(module.name, function.name) for function in module.functions if not is_private(function)}
            continue
        for listed in getattr(room, "__all__", []):
            value = getattr(room, listed)
            members = vars(value).values() if inspect.isclass(value) else [value]
            for member in members:
                code = getattr(inspect.unwrap(getattr(member, "py_func", member)), "__code__", None)
                if code and code.co_filename.startswith(str(PACKAGE)):
                    places.add((Path(code.co_filename).relative_to(PACKAGE).as_posix(), code.co_name))
    return places


def wide_functions(found, above=10):
    """Return (arguments, place) of the functions which are not public, with more than `above` arguments, most first."""
    public = public_code()
    counts = [
        (arguments(function), f"{module.name}:{function.lineno} {function.name}")
        for module in found
        for function in module.functions
        if (module.name, function.name) not in public
    ]
    return sorted((count for count in counts if count[0] > above), reverse=True)


def used_once(found, below=4):
    """Return (lines of code, place) of the private helpers with fewer than `below` lines of code that are used once."""
    return [
        (module.size(function), f"{module.name}:{function.lineno} {function.name}")
        for module in found
        for function in module.tree.body
        if isinstance(function, _FUNCTION)
        and is_private(function)
        and not function.decorator_list
        and module.words[function.name] == 2
        and module.size(function) < below
    ]


def main():
    found = modules()
    lines = sum(module.lines for module in found)
    code = sum(len(module.code) for module in found)
    texts = sum(text.end_lineno - text.lineno + 1 for module in found for text in module.docstrings)
    private = [
        function
        for module in found
        for function in module.functions
        if is_private(function) and _has_docstring(function) and function.body[0].lineno == function.body[0].end_lineno
    ]
    print(f"lines: {lines:,}; of code {code:,}; of docstrings {texts:,}; modules {len(found):,}")
    print(f"private functions with a docstring of one line: {len(private):,}")
    for title, worst in (
        ("modules with over 350 lines of code", long_modules(found)),
        ("functions with over 60 lines of code", long_functions(found)),
        ("functions with over 10 arguments that are not public", wide_functions(found)),
    ):
        print(f"{title}: {len(worst)}")
        for size, place in worst:
            print(f"  {size:4} {place}")
    print(f"private helpers of at most 3 lines of code that are used once: {len(used_once(found))}")


if __name__ == "__main__":
    main()
