"""Data sets made from files that come with every CPython: there is nothing to download, and lengths are realistic.

Their content depends on the version of Python or of Unicode, so `Dataset.name` contains this version.
"""

from __future__ import annotations

import ast
import itertools
import pathlib
import platform
import re
import sys
import sysconfig
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.options import documented
from varlen_rnn.data.readers import from_texts
from varlen_rnn.data.vocabulary import split_text
from varlen_rnn.errors import InputError, check_int, check_list, shown

# Names in these scripts contain numbers instead of descriptions of the characters.
NUMBERED = ("CJK", "HANGUL SYLLABLE", "TANGUT", "NUSHU", "KHITAN", "HIEROGLYPH")

# A package with fewer functions is left out.
MIN_FUNCTIONS = 20

_TEST_FOLDERS = {"test", "tests", "idle_test"}

# Patterns that do not occur in prose: grammar, prompts, tables, underlined titles.
_NO_PROSE = re.compile(r"::=|>>>|\.\.\. |^\s*[-+|=*^~]{3,}|\+--|\s\|\s|   \S.*   ", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"“*(])")
_BULLET = re.compile(r"^\s*(?:\*|\d+\.)\s+")


def unicode_names(without: Iterable[str] = NUMBERED) -> Dataset:
    """Return the names of Unicode's characters, labelled by their general category ("Lu", "Sm" ...).

    There are about 30,000 names of 2 to 88 characters; each character of a name is a token.

    Parameters
    ----------
    without : tuple of str
        Words; names that contain one of them are left out.  By default, these are scripts whose characters have numbers
        instead of descriptive names.

    Examples
    --------
    >>> names = unicode_names()
    >>> len(names) > 25_000
    True
    >>> names.classes[:4]
    ['Cf', 'Ll', 'Lm', 'Lo']

    Source: the Unicode Character Database, in the version of `unicodedata.unidata_version`.
    """
    names, labels = [], []
    for character in map(chr, range(sys.maxunicode + 1)):
        name = unicodedata.name(character, "")
        if name and not any(word in name for word in without):
            names.append(name)
            labels.append(unicodedata.category(character))
    return from_texts(names, labels, name=f"unicode_names (Unicode {unicodedata.unidata_version})")


@documented
def documentation_sentences(min_count: int = 2, max_vocabulary: int | None = None) -> Dataset:
    """Return the sentences of Python's language reference, labelled by their topic; each word is a token.

    Tables, code and grammar are left out, as are sentences of fewer than 3 or more than 200 words.  A sentence that
    occurs in several topics belongs only to the shortest of them, so that a test set has no sentence of the training
    set.

    Parameters
    ----------
    {min_count max_vocabulary}

    Raises
    ------
    InputError
        If this Python has no module `pydoc_data.topics`.

    Examples
    --------
    >>> sentences = documentation_sentences()
    >>> [sentences.vocabulary[number] for number in sentences.encode("The statement returns a qwertz.")]
    ['the', 'statement', 'returns', 'a', '<unk>']

    Source: "The Python Language Reference", in the module `pydoc_data.topics`.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        expected = "the module pydoc_data.topics, which the standard library has"
        raise InputError("documentation_sentences", expected=expected, got=error) from error
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    # The shortest topic comes first, because it is the most specific topic of a repeated sentence.
    for topic in sorted(topics, key=lambda topic: (len(topics[topic]), topic)):
        for sentence in _sentences(topics[topic]):
            words = tuple(split_text(sentence, "words"))
            if 3 <= len(words) <= 200:
                found.setdefault(words, (topic, sentence))
    pairs = sorted(found.values(), key=lambda pair: pair[0])
    return from_texts(
        [sentence for _, sentence in pairs],
        [topic for topic, _ in pairs],
        tokens="words",
        min_count=min_count,
        max_vocabulary=max_vocabulary,
        name=f"documentation_sentences (Python {platform.python_version()})",
    )


def standard_library_functions(packages: Sequence[str] | None = None, limit: int | None = 400) -> Dataset:
    """Return the sources of the standard library's functions, labelled by package; each character is a token.

    Lengths have a heavy tail, from one line to hundreds of lines.  The files of a package are read in the order of
    their names until `limit` functions are found; tests and files that do not parse are left out.  A nested function is
    not a sequence of its own, but part of the outer function.

    Parameters
    ----------
    packages : sequence of str, optional
        Names of packages; by default all packages (folders) with at least 20 functions.
    limit : int or None
        The largest number of functions per package; None for no limit.

    Raises
    ------
    InputError
        If this Python comes without its sources, or does not have one of the packages.

    Examples
    --------
    >>> functions = standard_library_functions(["json", "logging"], limit=10)
    >>> functions.classes, len(functions)
    (['json', 'logging'], 20)

    Source: the standard library of the running Python, in `sysconfig.get_path("stdlib")`.
    """
    limit = None if limit is None else min(check_int(limit, "limit", 1), sys.maxsize)
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    # Without the condition on `_TEST_FOLDERS`, the folder of tests would be the largest package.
    known = sorted(
        path.parent.name for path in root.glob("[a-z]*/__init__.py") if path.parent.name not in _TEST_FOLDERS
    )
    texts, labels = [], []
    for package in known if packages is None else check_list(packages, "packages"):
        if packages is not None and (not isinstance(package, str) or package not in known):
            expected = f"one of {', '.join(known)}" if known else f"a package in {root}"
            raise InputError("packages", expected=expected, got=shown(package))
        functions = list(itertools.islice(_functions(root / package), limit))
        if packages is not None or len(functions) >= MIN_FUNCTIONS:
            texts += functions
            labels += [package] * len(functions)
    if not texts:
        hint = "does this Python come without its sources? documentation_sentences() needs no sources"
        expected = f"functions in the files {root}/*/*.py"
        raise InputError("standard_library_functions", expected=expected, got="no function", hint=hint)
    return from_texts(texts, labels, name=f"standard_library_functions (Python {platform.python_version()})")


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        prose = " ".join(_BULLET.sub("", paragraph).split())
        # Prose begins with a capital, a quote or a star and ends with a punctuation mark; code seldom does both.
        begins = prose[:1].isupper() or prose[:1] in ('"', "*")
        if begins and prose[-1] in ".!?:" and not _NO_PROSE.search(paragraph):
            yield from _SENTENCE_END.split(prose)


def _functions(folder: pathlib.Path) -> Iterator[str]:
    """Yield the source of each outermost function in a folder's files, without its indentation."""
    for path in sorted(folder.rglob("*.py")):
        if _TEST_FOLDERS.isdisjoint(path.relative_to(folder).parts):
            try:
                source = path.read_text("utf-8")
                with warnings.catch_warnings():
                    # Some old files contain string escapes that newer parsers warn about.
                    warnings.simplefilter("ignore")
                    tree = ast.parse(source)
            except (SyntaxError, ValueError, OSError):
                continue
            lines = source.split("\n")
            for node in _outermost(tree):
                yield textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def _outermost(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _outermost(child)
