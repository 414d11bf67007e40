"""Docstrings, comments and errors avoid four constructions that make a reader hold a sentence open.

CONTRIBUTING ("How we write") says what to write instead.  `prose_counts.json` holds how many texts of each room have
one of them; a count may only fall: `python -m tests.test_prose` writes the file anew after a room became clearer.
"""

import ast
import io
import json
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "varlen_rnn"
COUNTS = Path(__file__).parent / "prose_counts.json"
CONSTRUCTIONS = {
    "`what` for a noun": r"\bwhat\b|\bwhatever\b(?! (?:the|their|its)\b)",
    "`that of` for a noun": r"\b(?:that|those) of\b",
    "a condition before its result": (
        r"[;,:] of (?:an?|one|several|what|others?|those|all|no|which|two|each)\b[^,;.]*,"
    ),
    "`None of` for `None if`": r"\b(?:None|none|0|-1|True|False) of (?:an?|one|what|those|any|which)\b",
}
ODD = re.compile("|".join(CONSTRUCTIONS.values()))
ERROR_WORDS = ("expected", "got", "hint")


def without_code(text):
    """Return prose without doctests and without code in backticks."""
    lines = [line for line in text.splitlines() if not line.strip().startswith((">>>", "..."))]
    return re.sub(r"`[^`]*`", "`code`", " ".join(line.strip() for line in lines))


def comments(source):
    """Return the comments of a module, each with the comment lines directly below it."""
    found, last = [], -2
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# fmt", "# type", "# noqa", "#!")):
            text, row = token.string.lstrip("# "), token.start[0]
            alone = token.line.strip().startswith("#")
            if alone and row == last + 1:
                found[-1] += " " + text
            else:
                found.append(text)
            last = row if alone else -2
    return found


def docstrings(tree):
    """Return the docstrings of a module, its classes and its functions."""
    homes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, homes)]
    return [text for text in found if text]


def errors(tree):
    """Return the words of error messages: strings inside `raise`, and those named expected, got or hint."""
    homes = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    homes += [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in ERROR_WORDS]
    strings = {id(node): node for home in homes for node in ast.walk(home) if isinstance(node, ast.Constant)}
    return [node.value for node in strings.values() if isinstance(node.value, str)]


def texts(path):
    """Return every text of a module that a person reads."""
    source = path.read_text()
    tree = ast.parse(source)
    return [without_code(text) for text in (*docstrings(tree), *comments(source), *errors(tree))]


def odd_texts(path):
    """Return the texts of a module that have one of the four constructions."""
    return [text for text in texts(path) if ODD.search(text)]


def room_of(path):
    """Return the top-level room of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def counted():
    """Return how many texts of each room have one of the constructions."""
    found = Counter({room_of(path): 0 for path in PACKAGE.rglob("*.py")})
    for path in PACKAGE.rglob("*.py"):
        found[room_of(path)] += len(odd_texts(path))
    return dict(sorted(found.items()))


@pytest.mark.parametrize("room", sorted(counted()))
def test_the_count_of_a_room_only_falls(room):
    most = json.loads(COUNTS.read_text()).get(room, 0)
    odd = [
        f"{path.name}: {text[:200]}"
        for path in PACKAGE.rglob("*.py")
        if room_of(path) == room
        for text in odd_texts(path)
    ]
    assert len(odd) <= most, "\n".join(odd)


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("Return what an operator makes of it.", True),
        ("The gradient, and that of the weights.", True),
        ("Return the bound; of a cell without one, None.", True),
        ("Return the axis, or None of one that mixes steps.", True),
        ("Return the bound, or None if there is none.", False),
        ("The same bits, whatever the number of threads.", False),
        ("A `what` in code is a name.", False),
    ],
)
def test_a_construction_is_found(text, odd):
    assert bool(ODD.search(without_code(text))) is odd


if __name__ == "__main__":
    COUNTS.write_text(json.dumps(counted(), indent=1) + "\n")
    print(sum(counted().values()), "texts")
