"""A page that draws a layout: one file, no scripts, readable in the light and in the dark."""

from __future__ import annotations

import html

from dovetail.cli.output import size
from dovetail.cli.sharding import physical, verdict, warning
from dovetail.targets import Laid, Layout

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #eef1f4; --line: #cfd6dd;
  --fsdp: #2f6fb0; --data: #3d8b52; --model: #b0582f; --expert: #8450a8; --sequence: #8a7a1f;
  --pipeline: #5b6470; --whole: #b03a48; --parameters: #0d8a8a; --optimizer: #c23a9e;
  --averages: #c98500; --variables: #6b4226; --batch: #4343c4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --paper: #14171a; --soft: #22272c;
  --line: #3a424a; --fsdp: #6aa5dd; --data: #74c088; --model: #e0925f; --expert: #bd8fe0;
  --sequence: #cdbb55; --pipeline: #9aa4b0; --whole: #e5707d; --parameters: #4fd0cf;
  --optimizer: #f08ad6; --averages: #f2bd4b; --variables: #c79a7b; --batch: #9a9aff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; min-width: 44rem; }
th { text-align: left; font-weight: 600; } td, th { padding: .25rem .6rem; vertical-align: top;
  border-bottom: 1px solid var(--line); } td.number, th.number { text-align: right;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: break-word; }
.axis { display: inline-block; border: 1px solid var(--line); border-radius: 3px;
  padding: 0 .35rem; margin: 0 .15rem .15rem 0; background: var(--soft); white-space: nowrap; }
.axis b { font-weight: 600; } .warning { border-left: 4px solid var(--whole); padding-left: .7rem; }
.whole { color: var(--whole); } .bar { display: flex; height: 1.4rem; background: var(--soft);
  border: 1px solid var(--line); border-radius: 3px; overflow: hidden; }
.bar span { min-width: 2px; } .key { white-space: nowrap; } .scroll { overflow-x: auto; }
"""

_GROUPS = {
    "parameters": "Parameters",
    "optimizer": "Optimizer state",
    "averages": "Averages",
    "variables": "Variables",
    "batch": "Batch",
    "activations": "Activations that layers name",
}


def sharding_page(name: str, layout: Layout) -> str:
    """Returns the page as HTML text."""
    title = f"{name} on {layout.machine.name}"
    mesh = " × ".join(f"{axis} {length}" for axis, length in layout.mesh.items()) or "one device"
    text = warning(layout)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(str(layout.machine))}. Mesh: {_mesh(layout) or html.escape(mesh)}</p>",
        _memory(layout),
        f'<p class="warning">{html.escape(text)}</p>' if text is not None else "",
        *(_table(heading, layout.group(group)) for group, heading in _GROUPS.items()),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _mesh(layout: Layout) -> str:
    return "".join(
        f'<span class="axis" style="border-color:var(--{axis})">{axis} <b>{length}</b></span>'
        for axis, length in layout.mesh.items()
    )


def _memory(layout: Layout) -> str:
    """Draws what each group takes of a device's memory."""
    there = layout.machine.memory_per_device
    pieces = "".join(
        f'<span style="width:{min(100, 100 * total / there):.3f}%;background:var(--{group})" '
        f'title="{group}: {size(total)}"></span>'
        for group, total in layout.totals().items()
    )
    legend = ", ".join(
        f'<span class="key"><span style="color:var(--{group})">■</span> '
        f"{group} {size(total)}</span>"
        for group, total in layout.totals().items()
    )
    host = layout.elsewhere()
    more = f" On the host: {size(host)} for each device." if host else ""
    return f'<div class="bar">{pieces}</div><p>{legend}. {html.escape(verdict(layout))}.{more}</p>'


def _table(heading: str, arrays: list[Laid]) -> str:
    if not arrays:
        return ""
    rows = "".join(_row(laid) for laid in arrays)
    return (
        f"<h2>{heading}</h2><div class='scroll'><table><tr><th>array</th><th>axes</th>"
        "<th>on each device</th><th class='number'>bytes a device</th></tr>"
        f"{rows}</table></div>"
    )


def _row(laid: Laid) -> str:
    axes = "".join(
        _axis(axis, length, names)
        for axis, length, names in zip(laid.axes, laid.shape, laid.split, strict=True)
    )
    path = html.escape(laid.path or "(model)").replace("/", "/<wbr>")  # a long one breaks there
    whole = ' class="whole"' if laid.is_replicated else ""
    local = " × ".join(map(str, laid.local_shape)) or "scalar"
    copies = f", {laid.copies} copies" if laid.copies > 1 else ""
    host = "" if laid.memory is None else "<br>on the host"
    return (
        f"<tr><td><code>{path}</code></td><td>{axes}</td>"
        f"<td{whole} title='{html.escape(physical(laid))}'>{local} {laid.dtype}{copies}</td>"
        f"<td class='number'>{size(laid.bytes_per_device)}{host}</td></tr>"
    )


def _axis(axis: str | None, length: int, names: tuple[str, ...]) -> str:
    """Draws one axis; its border and its words say what splits it."""
    style = f' style="border-color:var(--{names[0]})"' if names else ""
    over = f" / {' × '.join(names)}" if names else ""
    return f'<span class="axis"{style}>{axis or "–"} <b>{length}</b>{over}</span>'
