"""Every public name has a page of the site (docs/api_pages.py), with its docstring."""

import importlib
import inspect
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import varlen_rnn as vr
from tests.test_checked_kernels import FUNCTIONS
from tests.test_recipes import HELPERS
from varlen_rnn.runtime.numba_internals import is_inlined

ROOT = Path(__file__).parent.parent
PRIVATE = {"attention", "linear_attention"}  # engines
PACKAGES = sorted({path.parent.name for path in ROOT.glob("varlen_rnn/*/__init__.py") if "__all__" in path.read_text()})


@pytest.fixture(scope="module")
def pages():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return runpy.run_path(str(ROOT / "docs" / "api_pages.py"))["pages"]()


def described(pages):
    """Return the full names that pages describe."""
    found = set()
    for text in pages.values():
        found |= set(re.findall(r"^\.\. auto(?:class|function|exception|data):: (.*)$", text, re.MULTILINE))
        if data := re.search(r"^\.\. currentmodule:: (.*)\n\n\.\. py:data:: (.*)$", text, re.MULTILINE):
            found.add(".".join(data.groups()))
    return found


def test_every_public_name_has_a_page(pages):
    names = ["varlen_rnn", "varlen_rnn.nn.functional"]
    names += [f"varlen_rnn.{name}" for name in PACKAGES if name not in PRIVATE]
    assert "varlen_rnn.torch" in names
    modules = [importlib.import_module(name) for name in names]
    public = [(module, name) for module in modules for name in module.__all__]
    wanted = {f"{m.__name__}.{name}" for m, name in public if not isinstance(getattr(m, name), ModuleType)}
    assert wanted - described(pages) == set()
    assert set(names) - pages.keys() == set()


def test_every_kernel_of_users_has_a_page(pages):
    bodies = {name for name, value in FUNCTIONS.items() if is_inlined(value)}
    wanted = FUNCTIONS.keys() - bodies - HELPERS
    found = {name.rpartition(".")[2] for name in described(pages) if name.startswith("varlen_rnn.kernels.")}
    assert found == wanted
    kernel = vr.kernels.pool.pool_sum_cpu
    assert "offsets[i + 1]" in inspect.getdoc(kernel)  # of what is compiled, too, as Sphinx asks
    assert list(inspect.signature(kernel).parameters) == ["x", "offsets", "scale", "out"]


def test_pages_are_reached(pages):
    """Each stands in the contents, or in the list of its module's page."""
    top = {"index", *pages["index"].split()} & pages.keys()
    for name in pages.keys() - top:
        module, _, public = name.removesuffix("-function").rpartition(".")
        assert re.search(rf"^(   |\* `){public}(`|:|$)", pages[module], re.MULTILINE), name
    assert {name for name, text in pages.items() if not text.startswith(":orphan:")} == top


def test_file_systems_that_know_no_cases_keep_all_pages(pages):
    assert len({name.lower() for name in pages}) == len(pages)


def parameters_in_words(cls):
    """Return the description of each parameter in the docstring of a class, by the parameter's name."""
    section = re.search(r"\nParameters\n-+\n(.*?)\n\n", inspect.getdoc(cls), re.DOTALL)[1]
    entries = re.findall(r"^(\w[\w, ]*) : (.*(?:\n .*|\n$)*)", section, re.MULTILINE)
    return {name: words for names, words in entries for name in names.split(", ")}


@pytest.mark.parametrize("cls", [vr.nn.LSTM, vr.nn.GRU, vr.nn.RNN], ids=lambda cls: cls.__name__)
def test_recurrent_layers_document_every_option_on_their_own_page(cls):
    words = parameters_in_words(cls)
    assert set(words) == set(inspect.signature(cls).parameters)
    base = parameters_in_words(vr.nn.RNN)
    # An LSTM has two states to zone out, and each class says which arguments it clips.
    shared = (words.keys() & base.keys()) - {"zoneout", "clip"}
    assert {name: words[name] for name in shared} == {name: base[name] for name in shared}
    for part in ("A call `y, ", "`(rows, input_size)`", "`(num_layers * num_directions, sequences, hidden_size"):
        assert part in inspect.getdoc(cls), part


def test_classes_show_what_they_have_from_bases(pages):
    """In full where the base is private, as `fit` of an estimator would be; else as links."""
    text = pages["varlen_rnn.nn.LSTM"]
    assert re.search(r":members: .*\bweights\b", text), "of a private base"
    assert ":py:obj:`all_states <varlen_rnn.nn.Recurrent.all_states>`" in text
    assert ":py:obj:`state_dict <varlen_rnn.nn.Module.state_dict>`" in text
    assert "count" not in pages["varlen_rnn.PaddingReport"], "a method of tuples"
