"""What the README shows runs."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run_one_after_another():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["h_n"].shape == (2, 3, 16)
    assert names["lstm"].parameters()[0].grad is None  # after zero_grad
