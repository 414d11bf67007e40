"""The pages of docs/: what they show runs and prints what they say, links lead somewhere, all are in the contents."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Pages whose results a test of their own looks at.
ELSEWHERE = {
    "cells",
    "gpu",
    "interop",
    "kernels",
    "layers",
    "onnx",
    "operators",
    "programs",
    "sequences",
    "serving",
    "torch",
}
PAGES = sorted(path for path in DOCS.glob("*.md") if "```python\n" in path.read_text() and path.stem not in ELSEWHERE)
NUMBER = re.compile(r"-?\d+\.\d+")


def agrees(shown, printed):
    """Return whether a text is the other but for numbers with a point, which another machine may round otherwise."""
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    near = all(abs(float(a) - float(b)) <= 0.05 * max(1, abs(float(a))) for a, b in pairs)
    return near and NUMBER.sub("#", shown) == NUMBER.sub("#", printed)


def test_what_is_printed_agrees_or_not():
    assert agrees("loss 0.35, 3 rows\n", "loss 0.36, 3 rows\n")
    assert not agrees("loss 0.35, 3 rows\n", "loss 0.45, 3 rows\n")
    assert not agrees("loss 0.35, 3 rows\n", "loss 0.35, 4 rows\n")
    assert not agrees("[0.5]\n", "[0.5, 0.5]\n")


def names_of(page):
    """Return the names after running the Python blocks of a page; raise unless each prints what stands behind it."""
    for module in ("torch", "varlen_rnn.sklearn"):
        if re.search(rf"^(import|from) {module}\b", page.read_text(), re.MULTILINE):
            pytest.importorskip(module, reason=f"{module} is not installed")
    blocks = re.findall(r"```(python|text)\n(.*?)```", page.read_text(), re.DOTALL)
    names, printed = {"__name__": page.stem}, ""
    for number, (language, text) in enumerate([*blocks, ("python", "")]):
        if language == "text":
            assert agrees(text, printed), f"block {number} of {page.name} printed\n{printed}"
            printed = ""
            continue
        assert printed == "", f"{page.name} does not show what the block before {number} prints"
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(text, f"{page.name}, block {number}", "exec"), names)
        printed = output.getvalue()
    return names


pytestmark = pytest.mark.usefixtures("operators_before")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_what_it_shows(page):
    names_of(page)


def test_the_scalar_of_the_page_is_right_for_large_numbers():
    softsign = names_of(DOCS / "add_an_operator.md")["softsign"]
    numbers = np.array([[-1e30], [-100], [0], [100], [1e30]], np.float32)
    x = vr.Variable(vr.create_lod_tensor(numbers, [[1] * 5]), requires_grad=True)
    one = np.eye(1, dtype=np.float32)
    layer = vr.nn.DynamicRNN(lambda row, h: (softsign(row @ one + h @ one),) * 2)
    y, _ = layer(x, [(1,)])
    y.sum().backward()
    assert layer.explain().startswith("runs fused")
    size = 1 + np.abs(numbers.astype(np.float64))
    np.testing.assert_allclose(y, numbers / size, rtol=1e-6)
    np.testing.assert_allclose(x.grad, 1 / size**2, rtol=1e-5, atol=1e-30)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_of_keras(x, kernel, recurrent_kernel, bias):
    """Return the outputs of Keras' LSTM for one sequence, gates in the order i f c o."""
    h, c, outputs = np.zeros(16), np.zeros(16), []
    for row in x:
        i, f, g, o = np.split(row @ kernel + h @ recurrent_kernel + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return outputs


def gru_of_keras(x, kernel, recurrent_kernel, bias):
    """Return the outputs of Keras' GRU that resets after its product, gates in the order z r h."""
    h, outputs = np.zeros(16), []
    for row in x:
        (x_z, x_r, x_h), (u_z, u_r, u_h) = (
            np.split(row @ kernel + bias[0], 3),
            np.split(h @ recurrent_kernel + bias[1], 3),
        )
        z, candidate = sigmoid(x_z + u_z), np.tanh(x_h + sigmoid(x_r + u_r) * u_h)
        h = z * h + (1 - z) * candidate
        outputs.append(h)
    return outputs


def test_weights_from_keras():
    names = names_of(DOCS / "coming_from_keras.md")
    x = np.random.default_rng(1).standard_normal((7, 8))
    shapes = {"lstm": [(8, 64), (16, 64), (64,)], "gru": [(8, 48), (16, 48), (2, 48)]}
    for kind, of_keras in (("lstm", lstm_of_keras), ("gru", gru_of_keras)):
        weights = [np.random.default_rng(2).standard_normal(shape) for shape in shapes[kind]]
        layer = {"lstm": vr.nn.LSTM, "gru": vr.nn.GRU}[kind](8, 16, dtype=np.float64)
        layer.load_state_dict(names[f"{kind}_state"](*weights))
        y, _ = layer(vr.LoDTensor.from_sequences([x]))
        np.testing.assert_allclose(y, of_keras(x, *weights), atol=1e-12)


def names_after(script, monkeypatch):
    """Return the names after running a script of the gallery."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    monkeypatch.setattr(pyplot, "show", lambda: pyplot.close("all"))
    return runpy.run_path(str(DOCS / "gallery" / f"{script}.py"))


def test_the_gallery_on_rows(monkeypatch):
    names = names_after("plot_1_rows", monkeypatch)
    assert names["plan"].batch_sizes.sum() == names["lengths"].sum() == np.count_nonzero(names["padded"])


def test_the_gallery_on_labels_of_steps(monkeypatch):
    names = names_after("plot_2_every_step", monkeypatch)
    with vr.no_grad():
        rows = {way: np.asarray(model(names["held_out"])).argmax(axis=1) for way, model in names["models"].items()}
    shares = {way: np.mean(found == names["wanted"]) for way, found in rows.items()}
    assert shares["both"] > shares["forward"] > 0.85, "as it says"


def test_the_gallery_on_weights_of_rows(monkeypatch):
    names = names_after("plot_3_attention", monkeypatch)
    assert np.mean(names["losses"][-20:]) < 0.01
    for weights, (rows, _) in zip(names["weights"].value.to_sequences(), names["problems"], strict=True):
        assert weights[rows[:, 1] == 1].sum() > 0.5, "the marked rows are looked at"


def test_every_page_stands_in_the_contents():
    listed = re.findall(r"^(\w+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = [
        path for path in DOCS.glob("*.md") if "orphan: true" not in path.read_text()
    ]  # written ahead of their code
    assert sorted(listed) == sorted(path.stem for path in pages if path.stem != "index")


def anchors(path):
    """Return what links to the headings of a page end with, on GitHub and on the site."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *DOCS.glob("*.md")], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            path = page.parent / path if path else page
            assert path.exists(), target
            assert not anchor or anchor in anchors(path), target
