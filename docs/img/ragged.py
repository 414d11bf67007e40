"""Draws `ragged.svg`, the picture of the README: `python docs/img/ragged.py` writes it anew.

A batch of six sequences, padded to the longest, and as rows with offsets: one square is one row.
"""

from pathlib import Path

LENGTHS = (12, 3, 7, 1, 5, 2)
COLOURS = ("#3b528b", "#21918c", "#5ec962", "#b5a100", "#d95f02", "#9e4f9e")
PADDING = "#d9d9d9"
CELL, GAP, LEFT, TOP = 24, 3, 20, 62
RIGHT = LEFT + 12 * CELL + 80  # where the second picture begins
PATH = Path(__file__).with_name("ragged.svg")


def square(x, y, colour):
    """Return a row, drawn as a square with its upper left corner at (x, y)."""
    return f'<rect x="{x}" y="{y}" width="{CELL - GAP}" height="{CELL - GAP}" rx="3" fill="{colour}"/>'


def text(x, y, words, size=14, anchor="start", weight="normal"):
    """Return words that begin, or are centred, at x, with their base line at y."""
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {style}>{words}</text>'


def padded():
    """Return the batch as a rectangle, with grey squares where a sequence has no row."""
    longest = max(LENGTHS)
    parts = [text(LEFT, 28, "Padded", 18, weight="bold")]
    parts += [text(LEFT, 48, f"{len(LENGTHS)} x {longest} = {len(LENGTHS) * longest} rows, and a mask")]
    for number, (length, colour) in enumerate(zip(LENGTHS, COLOURS, strict=True)):
        for step in range(longest):
            parts.append(square(LEFT + step * CELL, TOP + number * CELL, colour if step < length else PADDING))
    return parts


def ragged():
    """Return the batch as the rows of all sequences, one after another in lines of twelve, and its offsets."""
    offsets = [sum(LENGTHS[:number]) for number in range(len(LENGTHS) + 1)]
    colours = [colour for length, colour in zip(LENGTHS, COLOURS, strict=True) for _ in range(length)]
    parts = [text(RIGHT, 28, "Without padding", 18, weight="bold")]
    parts += [text(RIGHT, 48, f"{len(colours)} rows, and offsets")]
    for row, colour in enumerate(colours):
        parts.append(square(RIGHT + row % 12 * CELL, TOP + row // 12 * CELL, colour))
    parts.append(text(RIGHT, TOP + 4.4 * CELL, f"offsets = {offsets}"))
    return parts


def picture():
    """Return the whole picture as SVG."""
    width, height = RIGHT + 12 * CELL + 17, TOP + len(LENGTHS) * CELL + 17
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    title = "<title>One batch, padded and without padding</title>"
    paper = f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>'
    return "\n".join(
        [f'{head} font-family="sans-serif" fill="#222222">', title, paper, *padded(), *ragged(), "</svg>\n"]
    )


if __name__ == "__main__":
    PATH.write_text(picture())
