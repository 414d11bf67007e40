"""Docstrings, comments, errors and pages avoid four constructions that make a reader hold a sentence open.

CONTRIBUTING ("How we write") says what to write instead.  `prose_counts.json` holds how many texts of each room, and
how many places of each page, have one of them; a count may only fall: `python -m tests.test_prose` writes the file anew
after a room or a page became clearer.
"""

import ast
import io
import json
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests import operators_page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "varlen_rnn"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"docs/benchmarks.md"}
MOST_ON_PAGES = 19  # a tenth of the 190 places when pages were counted first
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


def name_of(page):
    """Return the name of a page in the counts, such as `docs/lod.md`."""
    return page.relative_to(ROOT).as_posix()


def prose_of_page(text):
    """Return a page's prose: without blocks of code, generated tables, addresses of links and code in backticks."""
    text = re.sub(r"^( *)```.*?^\1```[^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text.partition(operators_page.MARK)[0])
    return without_code(text)


def odd_places(page):
    """Return the places of a page that have one of the four constructions, each with the words around it."""
    text = prose_of_page(page.read_text())
    return [text[max(0, found.start() - 60) : found.end() + 60] for found in ODD.finditer(text)]


def counted_pages():
    """Return how many places of each page that people write have one of the constructions."""
    return {name_of(page): len(odd_places(page)) for page in PAGES if name_of(page) not in GENERATED}


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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_count_of_a_page_only_falls(page):
    most = json.loads(COUNTS.read_text())["pages"].get(name_of(page), 0)
    odd = [] if name_of(page) in GENERATED else odd_places(page)
    assert len(odd) <= most, "\n".join(odd)


def test_pages_have_a_tenth_of_the_places_that_they_once_had():
    assert sum(json.loads(COUNTS.read_text())["pages"].values()) <= MOST_ON_PAGES


def test_code_and_addresses_of_a_page_are_no_prose():
    page = "See [the plan](plan.md#what-padding-costs).\n```python\nwhat = 1\n```\nThe name `what`, and that of x.\n"
    assert ODD.findall(prose_of_page(page)) == ["that of"]


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
    rooms, pages = counted(), counted_pages()
    COUNTS.write_text(json.dumps(rooms | {"pages": pages}, indent=1) + "\n")
    print(sum(rooms.values()), "texts,", sum(pages.values()), "places of pages")
