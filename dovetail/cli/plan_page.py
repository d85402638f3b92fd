"""A page that draws a plan: one file, no scripts, readable in the light and in the dark."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from dovetail.cli.output import size
from dovetail.cli.plan_report import MEMORY, SECONDS, duration, money, seconds, source, verdict
from dovetail.hardware import MFU_FORMULA
from dovetail.plan import Plan, Ranked

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #eef1f4; --line: #cfd6dd;
  --one: #2f6fb0; --two: #3d8b52; --three: #b0582f; --four: #8450a8; --bad: #b03a48; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --paper: #14171a; --soft: #22272c;
  --line: #3a424a; --one: #6aa5dd; --two: #74c088; --three: #e0925f; --four: #bd8fe0;
  --bad: #e5707d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.bar { display: flex; height: 2rem; background: var(--soft); border: 1px solid var(--line);
  border-radius: 3px; overflow: hidden; } .bar span { min-width: 2px; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left;
  padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } .bad { color: var(--bad); } .key { display: inline-block;
  width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }
small { color: inherit; opacity: .75; }
"""
_COLOURS = ("one", "two", "three", "four")


def plan_page(plan: Plan, remedies: Sequence[Ranked] = ()) -> str:
    """Returns the page as HTML text; where a plan does not fit, with the changes that do."""
    title = f"{plan.experiment} on {plan.machine.name}"
    mesh = " × ".join(f"{axis} {length}" for axis, length in plan.mesh.items()) or "one device"
    fits = "" if plan.fits else ' class="bad"'
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(str(plan.machine))}; mesh {html.escape(mesh)}.</p>",
        f"<p><strong{fits}>{html.escape(verdict(plan))}</strong>; {html.escape(source(plan))}.</p>",
        _list("Refused", (plan.refusal,) if plan.refusal else ()),
        _list("What would fit", tuple(map(_remedy, remedies))),
        _memory(plan),
        _seconds(plan),
        _communication(plan),
        _list("Kernels", plan.kernels),
        _price(plan),
        _list("To know", (*plan.slow, *plan.notes)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _remedy(each: Ranked) -> str:
    room = size(each.plan.memory.total * each.plan.machine.chip.devices_per_chip)
    return f"{each.candidate}: {room} a chip, {seconds(each.plan)} a step, {each.plan.source}"


def _memory(plan: Plan) -> str:
    chip = plan.machine.chip.devices_per_chip
    values = {label: getattr(plan.memory, name) for name, label in MEMORY.items()}
    whole = max(plan.memory.limit, plan.memory.total)
    rows = {label: size(value * chip) for label, value in values.items()}
    has = size(plan.memory.limit * chip)
    is_over = plan.memory.total > plan.memory.limit
    bar = "all that it takes; the chip has" if is_over else "what the chip has,"
    limit = f"The bar is {bar} {has}."
    return (
        f"<h2>Memory a chip</h2>{_bar(values, whole)}{_legend(rows)}<p><small>{limit}</small></p>"
    )


def _seconds(plan: Plan) -> str:
    values = {label: getattr(plan.timing, name) for name, label in SECONDS.items()}
    rows = {label: duration(value) for label, value in values.items()}
    if plan.timing.hidden:
        rows["communication behind others"] = duration(plan.timing.hidden)
    formula = f"MFU {plan.mfu:.1%}. {MFU_FORMULA}."
    return (
        f"<h2>A step: {html.escape(seconds(plan))}</h2>{_bar(values, plan.step_s)}{_legend(rows)}"
        f"<p><small>{html.escape(formula)}</small></p>"
    )


def _communication(plan: Plan) -> str:
    if not plan.exchanges:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(each.kind)}</td><td>{html.escape(each.axes)}</td>"
        f"<td class='number'>{size(each.bytes)}</td><td class='number'>{each.count:,.0f}</td>"
        f"<td class='number'>{duration(each.seconds)}</td></tr>"
        for each in plan.exchanges
    )
    return (
        "<h2>Communication a step, of one device</h2><div class='scroll'><table><tr><th>kind</th>"
        "<th>over</th><th class='number'>bytes</th><th class='number'>times</th>"
        f"<th class='number'>takes</th></tr>{rows}</table></div>"
    )


def _price(plan: Plan) -> str:
    price = plan.machine.chip.price
    if price is None:
        return "<h2>Price</h2><p>No public list price is known.</p>"
    return (
        f"<h2>Price</h2><p>{money(plan.usd_per_step)} a step, "
        f"{money(plan.usd_per_trillion_tokens)} a trillion tokens, at "
        f"${price.usd_per_chip_hour:.2f} an hour and chip "
        f"({html.escape(price.offer)}, {html.escape(price.date)}).</p>"
    )


def _bar(values: Mapping[str, float], whole: float) -> str:
    pieces = "".join(
        f'<span style="width:{100 * value / whole:.3f}%;background:var(--{colour})" '
        f'title="{html.escape(label)}"></span>'
        for (label, value), colour in zip(values.items(), _COLOURS, strict=False)
    )
    return f'<div class="bar">{pieces}</div>'


def _legend(rows: Mapping[str, str]) -> str:
    colours = [*_COLOURS[: len(rows)], *["line"] * (len(rows) - len(_COLOURS))]
    body = "".join(
        f'<tr><td><span class="key" style="background:var(--{colour})"></span>'
        f"{html.escape(label)}</td><td class='number'>{html.escape(text)}</td></tr>"
        for (label, text), colour in zip(rows.items(), colours, strict=True)
    )
    return f"<table>{body}</table>"


def _list(heading: str, lines: tuple[str, ...]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<h2>{heading}</h2><ul>{items}</ul>"
