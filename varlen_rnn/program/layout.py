"""Lay out text in columns, and in lines that fit a screen."""

WIDTH = 100  # characters of a line; only a single longer word exceeds it


def columns(rows):
    """Return a line of text per row of cells, with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def aligned(numbers, unit):
    """Return a column of numbers, right-aligned, each with a unit."""
    texts = [f"{number:,}" for number in numbers]
    return [f"{text:>{max(map(len, texts))}} {unit}" for text in texts]


def wrapped(items, indent, width, begin=""):
    """Join items into lines that break only between items; lines after the first are indented."""
    lines, line = [], begin + items[0]
    for item in items[1:]:
        if len(line) + 1 + len(item) > width:
            lines.append(line)
            line = indent + item
        else:
            line += f" {item}"
    return [*lines, line]
