"""Text tables whose columns are as wide as their longest cell, so that they never run together."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = "  "


def format_table(
    rows: Sequence[Sequence[str]],
    *,
    header: Sequence[str] = (),
    align: str = "",
    indent: str = "",
) -> str:
    """Returns the rows as lines of text.

    A row may have fewer cells than others. Its last cell then runs on over the columns that it
    lacks, without making its own column wider.

    Args:
        rows: the cells, row by row.
        header: the first line.
        align: one character a column: `<` left (also where there is none), `>` right.
        indent: begins every line.
    """
    lines = [list(row) for row in ([header, *rows] if header else rows)]
    count = max(map(len, lines), default=0)
    sides = align.ljust(count, "<")
    widths = [0] * count
    for cells in lines:
        for column, cell in enumerate(cells):
            if column == count - 1 or column < len(cells) - 1:
                widths[column] = max(widths[column], len(cell))
    return "\n".join(indent + _line(cells, widths, sides).rstrip() for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int], sides: str) -> str:
    padded = [
        cell.rjust(width) if side == ">" else cell.ljust(width)
        for cell, width, side in zip(cells, widths, sides, strict=False)
    ]
    if cells and len(cells) < len(widths):
        padded[-1] = cells[-1]
    return _GAP.join(padded)
