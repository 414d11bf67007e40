"""Tables, as text that grows line by line and as Markdown."""


def text_row(cells, widths):
    """Return a line of text: the first cell to the left, the others to the right.

    Examples
    --------
    >>> text_row(["LSTM", 1.5, None], [6, 6, 3])
    'LSTM    1.50  -'
    """
    first, *others = (f"{show(cell):>{width}}" for cell, width in zip(cells, widths, strict=True))
    return "".join([f"{first.lstrip():<{len(first)}}", *others])


def markdown(header, rows):
    """Return a Markdown table.

    Examples
    --------
    >>> print(markdown(["cell", "ratio"], [["LSTM", 12.345]]))
    | cell | ratio |
    |---|---|
    | LSTM | 12.3 |
    """
    lines = [f"| {' | '.join(map(show, row))} |" for row in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines)


def show(cell):
    """Return a cell as text: three digits of a float, thousands of an integer apart, a dash for nothing.

    Examples
    --------
    >>> show(0.12345), show(1234.5), show(12345), show(None)
    ('0.12', '1,234', '12,345', '-')
    """
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
