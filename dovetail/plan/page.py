"""A plan as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.hardware import MFU_FORMULA
from dovetail.plan.report import MEMORY, SECONDS, money, seconds, source, verdict
from dovetail.utils import format_bytes, format_duration
from dovetail.utils.html import Html, bar, colour, page, table, tag

if TYPE_CHECKING:
    from dovetail.plan.plan import Plan
    from dovetail.plan.search import RankedPlan


def plan_page(plan: Plan, remedies: Sequence[RankedPlan] = ()) -> str:
    """Returns a complete page; for a plan that does not fit, with the changes that would."""
    mesh = " × ".join(f"{axis} {length}" for axis, length in plan.mesh.items()) or "one device"
    return page(
        f"{plan.experiment} on {plan.machine.name}",
        tag("p", f"{plan.machine}; mesh {mesh}."),
        tag(
            "p",
            tag("strong", verdict(plan), class_=None if plan.fits else "bad"),
            f"; {source(plan)}.",
        ),
        *_list("Refused", (plan.refusal,) if plan.refusal else ()),
        *_list("What would fit", [_remedy(each) for each in remedies]),
        *_memory(plan),
        *_seconds(plan),
        *_communication(plan),
        *_list("Kernels", plan.kernels),
        *_price(plan),
        *_list("Notes", (*plan.slow, *plan.notes)),
    )


def _remedy(each: RankedPlan) -> str:
    memory = format_bytes(each.plan.memory.total * each.plan.machine.chip.devices_per_chip)
    return f"{each.candidate}: {memory} per chip, {seconds(each.plan)} per step, {each.plan.source}"


def _memory(plan: Plan) -> list[Html]:
    chip = plan.machine.chip.devices_per_chip
    values = {label: getattr(plan.memory, name) for name, label in MEMORY.items()}
    rows = {label: format_bytes(value * chip) for label, value in values.items()}
    is_over = plan.memory.total > plan.memory.limit
    what = "the total; the chip has" if is_over else "the chip's memory,"
    return [
        tag("h2", "Memory per chip"),
        _bar(values, max(plan.memory.limit, plan.memory.total)),
        _legend(rows),
        _note(f"The bar is {what} {format_bytes(plan.memory.limit * chip)}."),
    ]


def _seconds(plan: Plan) -> list[Html]:
    values = {label: getattr(plan.timing, name) for name, label in SECONDS.items()}
    rows = {label: format_duration(value) for label, value in values.items()}
    if plan.timing.hidden:
        rows["overlapped communication"] = format_duration(plan.timing.hidden)
    return [
        tag("h2", f"A step: {seconds(plan)}"),
        _bar(values, plan.step_seconds),
        _legend(rows),
        _note(f"MFU {plan.mfu:.1%}. {MFU_FORMULA}."),
    ]


def _communication(plan: Plan) -> list[Html]:
    if not plan.collectives:
        return []
    rows = [
        (
            each.kind,
            each.axes,
            format_bytes(each.bytes),
            f"{each.count:,.0f}",
            format_duration(each.seconds),
        )
        for each in plan.collectives
    ]
    header = ("kind", "over", "bytes", "times", "takes")
    return [
        tag("h2", "Communication per step, of one device"),
        table(rows, header, numbers=(2, 3, 4)),
    ]


def _price(plan: Plan) -> list[Html]:
    price = plan.machine.chip.price
    text = "No public list price is known."
    if price is not None:
        text = (
            f"{money(plan.usd_per_step)} per step, {money(plan.usd_per_trillion_items)} per "
            f"trillion {plan.item_kind}, at ${price.usd_per_chip_hour:.2f} per chip-hour "
            f"({price.offer}, {price.date})."
        )
    return [tag("h2", "Price"), tag("p", text)]


def _bar(values: Mapping[str, float], total: float) -> Html:
    return bar((label, value / total, n) for n, (label, value) in enumerate(values.items()))


def _legend(rows: Mapping[str, str]) -> Html:
    """Lists values with the colours of the bar; those beyond it are grey."""

    def key(number: int) -> Html:
        shade = colour(number if number < len(MEMORY) else None)
        return tag("span", class_="key", style=f"background:{shade}")

    return table(
        [(tag("span", key(n), label), text) for n, (label, text) in enumerate(rows.items())],
        numbers=(1,),
    )


def _note(text: str) -> Html:
    return tag("p", tag("small", text))


def _list(heading: str, lines: Sequence[str]) -> list[Html]:
    items = [tag("li", line) for line in lines]
    return [tag("h2", heading), tag("ul", *items)] if items else []
