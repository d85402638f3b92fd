"""HTML pages without scripts: one template, and elements that escape their text.

Text is escaped by construction: `tag` escapes every child and attribute that is not `Html`, and
only functions of this module make `Html`.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

# Eleven colours: the CSS variables `--colour0` to `--colour10`.
_LIGHT = (
    "#2f6fb0", "#3d8b52", "#b0582f", "#8450a8", "#8a7a1f", "#5b6470",
    "#0d8a8a", "#c23a9e", "#c98500", "#6b4226", "#4343c4",
)  # fmt: skip
_DARK = (
    "#6aa5dd", "#74c088", "#e0925f", "#bd8fe0", "#cdbb55", "#9aa4b0",
    "#4fd0cf", "#f08ad6", "#f2bd4b", "#c79a7b", "#9a9aff",
)  # fmt: skip


def _variables(colours: Sequence[str]) -> str:
    return " ".join(f"--colour{number}: {value};" for number, value in enumerate(colours))


_STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #eef1f4; --line: #cfd6dd;
  --bad: #b03a48; {_variables(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e9ec; --paper: #14171a; --soft: #22272c;
  --line: #3a424a; --bad: #e5707d; {_variables(_DARK)} }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; vertical-align: top; padding: .25rem .6rem;
  border-bottom: 1px solid var(--line); }}
td.number, th.number {{ text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }}
code {{ font: 13px/1.5 ui-monospace, monospace; overflow-wrap: break-word; }}
small {{ color: inherit; opacity: .75; }}
.scroll {{ overflow-x: auto; }} .bad {{ color: var(--bad); }}
.bar {{ display: flex; height: 1.8rem; background: var(--soft); border: 1px solid var(--line);
  border-radius: 3px; overflow: hidden; }} .bar span {{ min-width: 2px; }}
.key {{ display: inline-block; width: .8rem; height: .8rem; border-radius: 2px;
  margin-right: .4rem; }}
"""


class Html(str):
    """Text that is HTML already, and so is not escaped again."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | None) -> Html:
    """Returns an element. Children and attributes are escaped, unless they are `Html`.

    Args:
        name: the element, such as `td`.
        children: its content, in order.
        attributes: by name; `class_` is `class`, and None leaves an attribute out.
    """
    written = "".join(
        f' {key.rstrip("_")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Joins texts and elements; texts are escaped."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def table(
    rows: Iterable[Sequence[str]],
    header: Sequence[str] = (),
    numbers: Collection[int] = (),
) -> Html:
    """Returns a table that scrolls where it is too wide for the window.

    Args:
        rows: the cells, row by row.
        header: the names of the columns.
        numbers: which columns hold numbers, and are aligned to the right.
    """

    def line(cells: Sequence[str], kind: str) -> Html:
        classes = ["number" if column in numbers else None for column in range(len(cells))]
        return tag(
            "tr", *(tag(kind, cell, class_=name) for cell, name in zip(cells, classes, strict=True))
        )

    head = [line(header, "th")] if header else []
    return tag("div", tag("table", *head, *(line(row, "td") for row in rows)), class_="scroll")


def bar(shares: Iterable[tuple[str, float, int]]) -> Html:
    """Returns a horizontal bar of (label, share of the whole bar, number of its colour)."""
    pieces = (
        tag(
            "span",
            title=label,
            style=f"width:{100 * min(1.0, share):.3f}%;background:{colour(number)}",
        )
        for label, share, number in shares
    )
    return tag("div", *pieces, class_="bar")


def colour(number: int | None) -> str:
    """Returns the CSS of one of the eleven colours; None is a line's grey."""
    return "var(--line)" if number is None else f"var(--colour{number})"


def page(title: str, *body: str, style: str = "") -> str:
    """Returns a complete page, readable in light and dark mode.

    Args:
        title: the page's title, and its heading.
        body: what follows the heading.
        style: more CSS; it is not escaped.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', title)}<style>{_STYLE}{style}</style></head>\n"
        f"{tag('body', tag('h1', title), *body)}</html>\n"
    )


def frame(document: str) -> Html:
    """Returns a complete page as an element, for `_repr_html_`: its style changes no notebook."""
    return tag("iframe", srcdoc=document, style="width:100%;height:40rem;border:0")
