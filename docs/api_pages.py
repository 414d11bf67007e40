"""Writes a page for each public name: those of every module's `__all__`, and the kernels that other code may call."""

import ast
import functools
import importlib
import inspect
from pathlib import Path
from types import FunctionType, ModuleType

import varlen_rnn
from varlen_rnn.runtime.numba_internals import CPUDispatcher, is_inlined

NOT_PUBLIC = {"varlen_rnn.attention", "varlen_rnn.linear_attention"}  # fronts of engines, as `recurrence`
KERNELS = (
    "alignment",
    "causal",
    "crf",
    "ctc",
    "edit_distance",
    "largest",
    "lattice",
    "losses",
    "moves",
    "n_best",
    "norms",
    "pairwise",
    "philox",
    "pool",
    "prefixes",
    "rows",
    "segment",
    "softmax",
    "transducer",
)
KERNELS += ("updates", "windows", "convolutions")
# What public functions take and return, or refer to, beside what stands in an `__all__`.
MORE = {
    "varlen_rnn.cells.family": ["Family"],
    "varlen_rnn.kernels": [],
    "varlen_rnn.nn.matrix.stream": ["MatrixStream"],
    "varlen_rnn.nn.recurrent.prepared": ["Prepared"],
    "varlen_rnn.nn.recurrent.stream": ["Stream"],
    "varlen_rnn.ops": [],
    "varlen_rnn.ops.cost": ["Cost"],
    "varlen_rnn.rows.plan": ["sort_by_seq_len"],
    "varlen_rnn.random": ["get_state", "next_step", "set_state"],
    "varlen_rnn.tape.declare": ["Operator"],
}
# The modules of the index by subject; a module that is not listed comes under "Other modules".
GROUPS = {
    "Batches, operators, programs": ["varlen_rnn", "varlen_rnn.rows.plan"],
    "Layers": [
        "varlen_rnn.nn",
        "varlen_rnn.nn.functional",
        "varlen_rnn.nn.matrix.stream",
        "varlen_rnn.nn.recurrent.prepared",
        "varlen_rnn.nn.recurrent.stream",
        "varlen_rnn.cells",
        "varlen_rnn.cells.family",
        "varlen_rnn.baselines",
    ],
    "Training": [
        "varlen_rnn.data",
        "varlen_rnn.optim",
        "varlen_rnn.optim.lr_scheduler",
        "varlen_rnn.training",
        "varlen_rnn.metrics",
        "varlen_rnn.random",
        "varlen_rnn.distributed",
    ],
    "Integrations": ["varlen_rnn.sklearn", "varlen_rnn.torch", "varlen_rnn.onnx", "varlen_rnn.interop"],
    "Other modules": [],
    "Kernels": ["varlen_rnn.kernels", *(f"varlen_rnn.kernels.{name}" for name in KERNELS)],
}
# The names of the package itself, by the room that defines them.
SUBJECTS = {
    "rows": "Batches of rows, and plans",
    "tape": "Variables, gradients, operators",
    "ops": "Operators over sequences",
    "steps": "Loops",
    "cells": "Cells",
    "program": "Programs",
    "interop": "Arrays of other libraries",
    "checkpoint": "Files",
    "runtime": "Threads, memory, devices",
    "random": "Random numbers",
    "errors": "Errors",
}
TITLES = {"class": "Classes", "exception": "Errors", "function": "Functions", "data": "Values"}


def public_modules():
    """Return the public modules by name: those with an `__all__`, those of kernels, and what else is listed above."""
    root = Path(varlen_rnn.__file__).parent
    files = [path for path in sorted(root.rglob("*.py")) if "\n__all__ = " in path.read_text()]
    names = [".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__") for path in files]
    names += [*MORE, *(f"varlen_rnn.kernels.{name}" for name in KERNELS)]
    return {name: importlib.import_module(name) for name in sorted(names) if name not in NOT_PUBLIC}


def public_names(module):
    """Return the public names of a module but for those of modules, which have pages of their own."""
    names = MORE.get(module.__name__, getattr(module, "__all__", None))
    if names is None:
        names = [name for name, value in vars(module).items() if is_kernel(name, value)]
    chosen = [name for name in names if not isinstance(getattr(module, name), ModuleType)]
    return sorted(chosen, key=lambda name: (name.lower(), name))


def is_kernel(name, value):
    """Return whether a name of a module of `kernels` is a function that compiled code may call, no part of one."""
    is_ours = isinstance(value, CPUDispatcher) and not name.startswith("_") and not name.endswith("_cuda")
    return is_ours and not is_inlined(value)


def kind_of(value):
    """Return what Sphinx calls a value: class, exception, function or data."""
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    is_type = hasattr(value, "__origin__")  # as list[int] has
    return "function" if callable(value) and hasattr(value, "__name__") and not is_type else "data"


@functools.cache
def full_names():
    """Return the full names of all that has a page, as `varlen_rnn.nn.LSTM`."""
    return {f"{name}.{public}" for name, module in public_modules().items() for public in public_names(module)}


def pages():
    """Return the text of all pages by their names."""
    modules = public_modules()
    names = [(module, public) for module in modules.values() for public in public_names(module)]
    texts = {name: page_of_module(module) for name, module in modules.items()}
    texts["index"] = page_of_index(modules)
    by_value = {id(getattr(module, public)): f"{module.__name__}.{public}" for module, public in names}
    for module, public in names:
        texts[page_name(f"{module.__name__}.{public}", texts)] = page_of_name(module, public, by_value)
    return texts


def page_name(full, taken):
    """Return the name of a page, another one for `cell` beside `Cell`, which not all file systems tell apart."""
    return full + "-function" if full.lower() in map(str.lower, taken) else full


def page_of_index(modules):
    """Return the page that lists all public names, module by module in groups, with a line for each name."""
    grouped = {heading: [name for name in names if name in modules] for heading, names in GROUPS.items()}
    grouped["Other modules"] = sorted(modules.keys() - {name for names in grouped.values() for name in names})
    lines = [title("API reference"), "Every public name has a page.  Kernels, which your own compiled code may call,"]
    lines += ["come last.  Examples have ``import numpy as np`` and ``import varlen_rnn as vr`` before them.", ""]
    for heading, names in grouped.items():
        lines += [heading, "-" * len(heading), "", ".. toctree::", "   :hidden:", "", *(f"   {name}" for name in names)]
        lines += ["", *(line for name in names for line in entry_of(modules[name]))]
    return "\n".join(lines)


def entry_of(module):
    """Return the lines of a module in the index: its first sentence, and tables of its names."""
    full = module.__name__
    lines = [f":doc:`{full} <{full}>`: {(module.__doc__ or '').splitlines()[0]}", ""]
    by_subject = {}
    for name in public_names(module):
        by_subject.setdefault(subject_of(module, name), []).append(name)
    for subject in sorted(by_subject, key=[*SUBJECTS.values(), "Others", ""].index):
        lines += [f".. rubric:: {subject}", ""] * bool(subject)
        values = {name: kind_of(getattr(module, name)) == "data" for name in by_subject[subject]}
        documented = [f"~{full}.{name}" for name, is_data in values.items() if not is_data]
        lines += table_of(documented) if documented else []
        lines += ["", *(value_with_summary(module, name, full) for name, is_data in values.items() if is_data), ""]
    return lines


def subject_of(module, name):
    """Return the heading of a name of the package itself; other modules have none."""
    if module is not varlen_rnn:
        return ""
    room = (getattr(getattr(module, name), "__module__", None) or "").removeprefix("varlen_rnn.").partition(".")[0]
    return SUBJECTS.get(room, "Others")


def page_of_module(module):
    """Return the page of a module: its docstring, and what is in it by kind."""
    lines = [title(module.__name__), f".. automodule:: {module.__name__}"]
    lines += ["   :no-index:", ""] if module.__name__ == "varlen_rnn.data" else [""]  # `varlen_rnn.data` is a function
    for kind, heading in TITLES.items():
        chosen = [name for name in public_names(module) if kind_of(getattr(module, name)) == kind]
        if chosen:
            lines += [f".. rubric:: {heading}", ""]
            lines += map(value_with_summary, [module] * len(chosen), chosen) if kind == "data" else table_of(chosen)
            lines += [""]
    return "\n".join(lines)


def table_of(names):
    """Return the lines of a table of names and the first sentences of their docstrings."""
    return [".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in names)]


def value_with_summary(module, public, full=None):
    """Return the line of a value in a list: its name, or a link into a module, and the first line of its origin."""
    shown = f":py:obj:`{public} <{full}.{public}>`" if full else f"`{public}`"
    origin = origin_of(module, public)
    return f"* {shown}" + (f": {importlib.import_module(origin).__doc__.splitlines()[0]}" if origin else "")


def page_of_name(module, public, by_value):
    """Return the page of a public name, to which the page of its module leads, not the site's contents."""
    value = getattr(module, public)
    kind, full = kind_of(value), f"{module.__name__}.{public}"
    lines = [":orphan:", "", title(full), f".. currentmodule:: {module.__name__}", ""]
    if kind == "data" and (origin := origin_of(module, public)):
        lines += [f".. py:data:: {public}", f"   :type: {type(value).__name__}", ""]
        lines += [f".. automodule:: {origin}", "   :no-index:"]
    else:
        lines += [f".. auto{kind}:: {full}"] + ["   :no-value:"] * (module.__name__ == "varlen_rnn.typing")
    if kind == "class":
        lines += members_of(value, by_value)
    return "\n".join([*lines, ""])


def origin_of(module, public):
    """Return the name of the module from which a module imports a value, or None: that one's docstring explains it."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and public in (alias.asname or alias.name for alias in node.names):
            return node.module
    return None


def members_of(cls, by_value):
    """Return the option that shows a class's members, those of private bases too, and links to those of public ones."""
    names_of = {}
    for name, base in documented_members(cls):
        names_of.setdefault("" if base is cls else by_value.get(id(base), ""), []).append(name)
    lines = [f"   :members: {', '.join(own)}"] if (own := names_of.pop("", [])) else []
    for full, names in names_of.items():
        lines += ["", f"From `{full}`: " + ", ".join(f":py:obj:`{name} <{full}.{name}>`" for name in names)]
    return lines


def documented_members(cls):
    """Yield the documented methods and properties of a class, base after base: a name, and the class it is from."""
    seen = set()
    for base in cls.__mro__:
        for name, member in sorted(vars(base).items()):
            member = getattr(member, "__func__", member)  # of class methods
            is_public = not name.startswith("_") or name in ("__call__", "__getitem__")
            is_kind = isinstance(member, (property, FunctionType, type)) and member.__doc__
            home = base if isinstance(member, property) else member  # scikit-learn puts functions into classes
            if is_public and is_kind and name not in seen and home.__module__.startswith("varlen_rnn."):
                yield name, base
        seen |= vars(base).keys()


def title(name):
    """Return a heading."""
    return f"{name}\n{'=' * len(name)}\n"


def write(folder):
    """Write all pages into a folder, those that changed, and remove what else is there."""
    folder.mkdir(exist_ok=True)
    texts = {f"{name}.rst": text for name, text in pages().items()}
    for path in folder.iterdir():
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
