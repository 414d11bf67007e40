"""The documentation site: `python -m sphinx -W --keep-going docs build/site`, after `pip install -e ".[docs]"`."""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("VARLEN_RNN_QUIET", "1")
sys.path.insert(0, str(Path(__file__).parent))

import api_pages
from docutils import nodes
from sphinx.addnodes import pending_xref

import varlen_rnn.typing

project, author, copyright = "varlen_rnn", "The varlen_rnn developers", "The varlen_rnn developers"
version = release = varlen_rnn.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*"]
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
}
html_theme = "furo"
html_static_path, html_css_files = ["static"], ["wide.css"]
html_title = f"varlen_rnn {release}"

myst_heading_anchors = 3  # links to headings, as GitHub has them
myst_enable_extensions = ["dollarmath"]

smartquotes = False  # "max" in a docstring is code

default_role = "py:obj"  # what stands between single backticks in docstrings is code, and a link where it is a name
autosummary_generate = False  # api_pages.py writes the pages
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: f"varlen_rnn.typing.{name}" for name in varlen_rnn.typing.__all__}
autodoc_type_aliases |= {name: f"numpy.typing.{name}" for name in ("ArrayLike", "DTypeLike")}
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False  # they are documented in full below the class


def with_math(app, what, name, obj, options, lines):
    """Show what docstrings write between dollars as formulas, and indented equations of modules as they stand."""
    lines[:] = [re.sub(r"\$([^$]+)\$", r":math:`\1`", line) for line in lines]
    if what == "module":
        begins = [n for n in range(1, len(lines)) if lines[n].startswith("    ") and not lines[n - 1]]
        for number in reversed(begins):
            lines[number:number] = ["::", ""]


def with_short_types(app, what, name, obj, options, signature, returned):
    """Show aliases by their names, inside of other types too, with links; and data types as one writes them."""
    alias = re.compile(r"(?:TypeAliasForwardRef\(')?((?:varlen_rnn|numpy)\.typing\.\w+)(?:'\))?")
    shown = [text and alias.sub(r"~\1", text) for text in (signature, returned)]
    return tuple(text and re.sub(r"<class 'numpy\.(\w+)'>", r"np.\1", text) for text in shown)


def with_links(app, doctree):
    """Make links of the public names that pages write as code: `vr.cell`, `nn.LSTM(8, 16)`, not any `cell`."""
    page = app.env.current_document.docname
    for literal in [] if page.startswith(("api/", "auto_gallery/")) else list(doctree.findall(nodes.literal)):
        name = literal.astext().partition("(")[0]
        full = f"varlen_rnn.{name.removeprefix('varlen_rnn.').removeprefix('vr.')}"
        is_word = name.isalpha() and name.islower()
        if full in api_pages.full_names() and not is_word and not isinstance(literal.parent, nodes.reference):
            link = pending_xref(refdomain="py", reftype="obj", reftarget=full, refdoc=page, refexplicit=True)
            literal.replace_self(link)
            link += literal


def with_built_gallery(app, name, source):
    """Lead to the built pages of the gallery where GitHub is led to its scripts."""
    source[0] = re.sub(r"\]\(gallery/(\w+)\.py\)", r"](auto_gallery/\1.rst)", source[0])


def setup(app):
    """Write the pages of public names before Sphinx looks which pages there are."""
    app.connect("builder-inited", lambda app: api_pages.write(Path(app.srcdir) / "api"))
    app.connect("source-read", with_built_gallery)
    app.connect("doctree-read", with_links)
    app.connect("autodoc-process-docstring", with_math)
    app.connect("autodoc-process-signature", with_short_types)
