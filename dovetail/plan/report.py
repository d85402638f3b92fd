"""Plans, searches and comparisons as text. The methods of the results call these functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.utils import format_bytes, format_count, format_duration, format_table

if TYPE_CHECKING:
    from dovetail.plan.comparison import ComparisonRow
    from dovetail.plan.plan import Plan
    from dovetail.plan.search import RankedPlan, SearchResult
    from dovetail.plan.verification import PlanVerification

_BAR = 30
MEMORY = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "activations": "saved activations",
    "temporaries": "temporaries",
}
SECONDS = {
    "matmul": "matmuls",
    "kernels": "hand-written kernels",
    "memory": "memory-bound operations",
    "exposed": "exposed communication",
}


def plan_summary(plan: Plan) -> str:
    """Returns the most important numbers of a plan in one line."""
    return f"{plan.source}: {verdict(plan)}; step time {seconds(plan)}, MFU {plan.mfu:.1%}" + (
        f", {money(plan.usd_per_step)} per step" if plan.usd_per_step is not None else ""
    )


def plan_report(plan: Plan) -> str:
    """Returns the memory, the step time, the communication and the price of a plan."""
    mesh = " x ".join(f"{axis} {length}" for axis, length in plan.mesh.items()) or "one device"
    return "\n".join(
        [
            f"{plan.experiment} on {plan.machine.name} ({plan.machine}): mesh {mesh}",
            f"{verdict(plan)}; {source(plan)}",
            *_memory(plan),
            *_seconds(plan),
            *_communication(plan),
            *_kernels(plan),
            *_price(plan),
            *([f"refused: {plan.refusal}"] if plan.refusal else []),
            *(f"note: {note}" for note in (*plan.slow, *plan.notes)),
        ]
    )


def remedies_report(plan: Plan, fitting: Sequence[RankedPlan]) -> str:
    """Returns what uses the memory of a plan that does not fit, and which changes would fit."""
    largest = max(MEMORY, key=lambda name: float(getattr(plan.memory, name)))
    chip = plan.machine.chip.devices_per_chip
    state = plan.memory.parameters + plan.memory.optimizer
    if state > plan.memory.limit:
        used = f"parameters and optimizer alone take {format_bytes(state * chip)}"
    else:
        size = format_bytes(getattr(plan.memory, largest) * chip)
        used = f"the largest share is {MEMORY[largest]}: {size}"
    if not fitting:
        return (
            f"{used}\nnothing was found that fits: more chips, smaller examples or a smaller model"
        )
    how = "each compiled" if fitting[0].plan.source == "compiled" else "by arithmetic alone"
    return f"{used}\nthe nearest changes that fit, {how}:\n{_ranked(fitting)}"


def search_report(result: SearchResult) -> str:
    """Returns the result of a search beside the rule's own choice."""
    lines = [
        f"{result.considered:,} candidates ranked by arithmetic; the best of them:",
        _ranked(result.verified),
        f"the rule: {plan_summary(result.rule)}",
    ]
    best = result.best
    if best is None:
        return "\n".join([*lines, "nothing was found that fits"])
    gain = 1 - best.plan.step_seconds / result.rule.step_seconds
    if not result.rule.fits:
        lines.append("the rule's own choice does not fit")
    elif gain > 0:
        lines.append(f"the best takes {gain:.1%} less time per step than the rule's choice")
    else:
        lines.append("the rule's choice is the best")
    return "\n".join(lines)


def verification_report(verified: PlanVerification) -> str:
    """Returns the measurements of a run beside its plan."""
    predicted = format_duration(verified.predicted_seconds)
    measured = format_duration(verified.measured_seconds)
    memory = "not recorded (runs on a CPU record it, on Linux)"
    if verified.measured_bytes is not None and verified.memory_ratio is not None:
        memory = (
            f"beside state and batch, planned {format_bytes(verified.planned_bytes)}, measured "
            f"{format_bytes(verified.measured_bytes)}: {verified.memory_ratio:.2f} times as much"
        )
    return (
        f"{verified.run} on {verified.chip}\n"
        f"  step time  predicted {predicted}, measured {measured}: {verified.time_ratio:.2f} times "
        f"as long\n"
        f"  memory     {memory}"
    )


def comparison_report(name: str, rows: Sequence[ComparisonRow], by: str) -> str:
    """Returns one experiment on many machines, in the order of the rows.

    Args:
        name: the experiment.
        rows: one for each machine.
        by: how they are sorted, a key of `SORT_KEYS`.
    """
    title = f"{name} by arithmetic, sorted by {by}; seconds within 50%, prices as listed"
    header = ("target", "chips", "smallest", "memory", "step time", "MFU", "in all", "costs", "how")
    table = format_table([_row(row) for row in rows], header=header, align="<>>>>>>><")
    return f"{title}\n{table}"


def verdict(plan: Plan) -> str:
    """Returns whether the plan fits, and the memory that it uses."""
    chip = plan.machine.chip.devices_per_chip
    total, limit = plan.memory.total * chip, plan.memory.limit * chip
    share = f"{format_bytes(total)} of {format_bytes(limit)} per chip"
    if plan.fits:
        return f"fits, {share} ({total / limit:.0%})"
    over = total - limit
    return (
        f"does not fit, {share}: {format_bytes(over)} too much"
        if over > 0
        else f"does not fit, {share}"
    )


def source(plan: Plan) -> str:
    """Returns where the numbers come from."""
    if plan.compile_seconds is None:
        return "analytic: by arithmetic, nothing was compiled"
    if plan.refusal:
        return f"the compiler refused it after {format_duration(plan.compile_seconds)}"
    return f"compiled in {format_duration(plan.compile_seconds)}"


def seconds(plan: Plan) -> str:
    """Formats the step time with its error band."""
    time = format_duration(plan.step_seconds)
    return f"{time} ({plan.time_source}, within {plan.error_band:.0%})"


def money(value: float | None) -> str:
    """Formats dollars; a question mark if no price is known."""
    if value is None:
        return "?"
    return f"${value:,.0f}" if value >= 100 else f"${value:,.3g}"


def _row(row: ComparisonRow) -> tuple[str, ...]:
    smallest = "?" if row.smallest is None else str(row.smallest)
    machine = (row.machine.name, str(row.machine.chips), smallest)
    if row.best is None or row.seconds is None:
        return (*machine, f"does not fit: {row.reason}")
    plan = row.best.plan
    return (
        *machine,
        format_bytes(plan.memory.total * row.machine.chip.devices_per_chip),
        format_duration(plan.step_seconds),
        f"{plan.mfu:.1%}",
        format_duration(row.seconds),
        money(row.usd),
        str(row.best.candidate),
    )


def _ranked(ranked: Sequence[RankedPlan]) -> str:
    rows = []
    for candidate, plan in ranked:
        memory = format_bytes(plan.memory.total * plan.machine.chip.devices_per_chip)
        fits = "" if plan.fits else "does not fit  "
        rows.append(
            (
                f"{format_duration(plan.step_seconds)} per step ({plan.time_source})",
                f"{memory} per chip ({plan.source})",
                f"{fits}{candidate}",
            )
        )
    return format_table(rows, align=">>", indent="  ")


def _memory(plan: Plan) -> list[str]:
    chip = plan.machine.chip.devices_per_chip
    values = {label: getattr(plan.memory, name) for name, label in MEMORY.items()}
    rows = [
        (label, format_bytes(value * chip), _bar(value / plan.memory.limit))
        for label, value in values.items()
    ]
    if plan.memory.host:
        rows.append(("in the host’s memory", format_bytes(plan.memory.host * chip), ""))
    return ["", "memory per chip", format_table(rows, align="<>", indent="  ")]


def _seconds(plan: Plan) -> list[str]:
    values = {label: getattr(plan.timing, name) for name, label in SECONDS.items()}
    rows = [
        (label, format_duration(value), _bar(value / plan.step_seconds))
        for label, value in values.items()
    ]
    if plan.timing.hidden:
        rows.append(("overlapped communication", format_duration(plan.timing.hidden), ""))
    peak = f"{plan.machine.devices} x {plan.peak_flops / 1e12:.4g} TFLOP/s"
    work = f"{format_count(int(plan.model_flops))} FLOP"
    lines = [
        "",
        f"step time: {seconds(plan)}",
        format_table(rows, align="<>", indent="  "),
        f"  MFU {plan.mfu:.1%} = {work} / {format_duration(plan.step_seconds)} / ({peak})",
    ]
    if plan.mfu > 1:
        lines.append(
            "  above 100%: the formula counts what this step skips, such as masked attention"
        )
    return lines


def _communication(plan: Plan) -> list[str]:
    if not plan.collectives:
        return []
    rows = [
        (
            each.kind,
            f"over {each.axes}",
            format_bytes(each.bytes),
            f"in {each.count:,.0f}",
            format_duration(each.seconds),
        )
        for each in plan.collectives
    ]
    title = "communication per step, of one device"
    return ["", title, format_table(rows, align="<<><>", indent="  ")]


def _kernels(plan: Plan) -> list[str]:
    return ["", "kernels", *(f"  {line}" for line in plan.kernels)] if plan.kernels else []


def _price(plan: Plan) -> list[str]:
    price = plan.machine.chip.price
    kind = plan.item_kind
    items = f"{format_count(plan.items[kind])} {kind}"
    if price is None:
        return ["", f"a step has {items}; no public list price is known"]
    step, trillion = money(plan.usd_per_step), money(plan.usd_per_trillion_items)
    return [
        "",
        f"a step has {items} and costs {step}; a trillion {kind} {trillion}",
        f"  at ${price.usd_per_chip_hour:.2f} per chip-hour ({price.offer}, {price.date})",
    ]


def _bar(share: float) -> str:
    """Draws a fraction as a bar."""
    filled = round(max(0.0, min(1.0, share)) * _BAR)
    return "█" * filled
