"""What the README and the page on programs show runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def names_after(page):
    """Return the names after running the Python blocks of a page one after another."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names


def test_the_readme():
    names = names_after(ROOT / "README.md")
    assert names["h_n"].shape == (2, 3, 16)
    assert names["lstm"].parameters()[0].grad is None  # after zero_grad


def test_the_page_on_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_after(ROOT / "docs" / "programs.md")
    assert names["model"].feed_names == ["ids"]
    assert names["scores"].shape == (2, 2)
    assert names["again"].shape == ()
