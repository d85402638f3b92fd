"""A plan, printed for people."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.plan import ComparisonRow, Plan, PlanVerification, RankedPlan, SearchResult
from dovetail.utils import format_bytes, format_count, format_duration, format_table

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


def in_one_line(plan: Plan) -> str:
    """Returns the most important numbers of a plan in one line."""
    return f"{plan.source}: {verdict(plan)}; step time {seconds(plan)}, MFU {plan.mfu:.1%}" + (
        f", {money(plan.usd_per_step)} per step" if plan.usd_per_step is not None else ""
    )


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


def seconds(plan: Plan) -> str:
    """Formats the step time with its error band."""
    time = format_duration(plan.step_seconds)
    return f"{time} ({plan.time_source}, within {plan.error_band:.0%})"


def money(value: float | None) -> str:
    """Formats dollars; a question mark if no price is known."""
    if value is None:
        return "?"
    return f"${value:,.0f}" if value >= 100 else f"${value:,.3g}"


def print_plan(plan: Plan) -> None:
    """Prints a plan."""
    mesh = " x ".join(f"{axis} {length}" for axis, length in plan.mesh.items()) or "one device"
    print(f"{plan.experiment} on {plan.machine.name} ({plan.machine}): mesh {mesh}")
    print(f"{verdict(plan)}; {source(plan)}")
    _memory(plan)
    _seconds(plan)
    _communication(plan)
    _kernels(plan)
    _price(plan)
    if plan.refusal:
        print(f"refused: {plan.refusal}")
    for note in (*plan.slow, *plan.notes):
        print(f"note: {note}")


def source(plan: Plan) -> str:
    """Returns where the numbers come from."""
    if plan.compile_seconds is None:
        return "analytic: by arithmetic, nothing was compiled"
    if plan.refusal:
        return f"the compiler refused it after {format_duration(plan.compile_seconds)}"
    return f"compiled in {format_duration(plan.compile_seconds)}"


def print_remedies(plan: Plan, fitting: Sequence[RankedPlan]) -> None:
    """Prints what uses the memory, and which changes would fit."""
    largest = max(MEMORY, key=lambda name: float(getattr(plan.memory, name)))
    chip = plan.machine.chip.devices_per_chip
    state = plan.memory.parameters + plan.memory.optimizer
    if state > plan.memory.limit:
        print(f"\nparameters and optimizer alone take {format_bytes(state * chip)}")
    else:
        size = format_bytes(getattr(plan.memory, largest) * chip)
        print(f"\nthe largest share is {MEMORY[largest]}: {size}")
    if not fitting:
        print("nothing was found that fits: more chips, smaller examples or a smaller model")
        return
    how = "each compiled" if fitting[0].plan.source == "compiled" else "by arithmetic alone"
    print(f"the nearest changes that fit, {how}:")
    _print_ranked(fitting)


def print_search(result: SearchResult) -> None:
    """Prints the result of a search beside the rule's own choice."""
    print(f"{result.considered:,} candidates ranked by arithmetic; the best of them:")
    _print_ranked(result.verified)
    print(f"the rule: {in_one_line(result.rule)}")
    best = result.best
    if best is None:
        print("nothing was found that fits")
        return
    gain = 1 - best.plan.step_seconds / result.rule.step_seconds
    if not result.rule.fits:
        print("the rule's own choice does not fit")
    elif gain > 0:
        print(f"the best takes {gain:.1%} less time per step than the rule's choice")
    else:
        print("the rule's choice is the best")


def print_verified(verified: PlanVerification) -> None:
    """Prints a run beside its plan."""
    print(f"{verified.run} on {verified.chip}")
    print(
        f"  step time  predicted {format_duration(verified.predicted_seconds)}, measured "
        f"{format_duration(verified.measured_seconds)}: {verified.time_ratio:.2f} times as long"
    )
    if verified.measured_bytes is None or verified.memory_ratio is None:
        print("  memory     not recorded (runs on a CPU record it, on Linux)")
        return
    print(
        f"  memory     beside state and batch, planned {format_bytes(verified.planned_bytes)}, "
        f"measured {format_bytes(verified.measured_bytes)}: {verified.memory_ratio:.2f} times as "
        "much"
    )


def print_rows(name: str, rows: Sequence[ComparisonRow], by: str) -> None:
    """Prints one experiment on many machines."""
    print(f"{name} by arithmetic, sorted by {by}; seconds within 50%, prices as listed")
    header = ("target", "chips", "smallest", "memory", "step time", "MFU", "in all", "costs", "how")
    print(format_table([_row(row) for row in rows], header=header, align="<>>>>>>><"))


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


def _print_ranked(ranked: Sequence[RankedPlan]) -> None:
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
    print(format_table(rows, align=">>", indent="  "))


def _memory(plan: Plan) -> None:
    chip = plan.machine.chip.devices_per_chip
    print("\nmemory per chip")
    values = {label: getattr(plan.memory, name) for name, label in MEMORY.items()}
    rows = [
        (label, format_bytes(value * chip), bar(value / plan.memory.limit))
        for label, value in values.items()
    ]
    if plan.memory.host:
        rows.append(("in the host’s memory", format_bytes(plan.memory.host * chip), ""))
    print(format_table(rows, align="<>", indent="  "))


def _seconds(plan: Plan) -> None:
    print(f"\nstep time: {seconds(plan)}")
    values = {label: getattr(plan.timing, name) for name, label in SECONDS.items()}
    rows = [
        (label, format_duration(value), bar(value / plan.step_seconds))
        for label, value in values.items()
    ]
    if plan.timing.hidden:
        rows.append(("overlapped communication", format_duration(plan.timing.hidden), ""))
    print(format_table(rows, align="<>", indent="  "))
    peak = f"{plan.machine.devices} x {plan.peak_flops / 1e12:.4g} TFLOP/s"
    work = f"{format_count(int(plan.model_flops))} FLOP"
    print(f"  MFU {plan.mfu:.1%} = {work} / {format_duration(plan.step_seconds)} / ({peak})")
    if plan.mfu > 1:
        print("  above 100%: the formula counts what this step skips, such as masked attention")


def _communication(plan: Plan) -> None:
    if not plan.collectives:
        return
    print("\ncommunication per step, of one device")
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
    print(format_table(rows, align="<<><>", indent="  "))


def _kernels(plan: Plan) -> None:
    if plan.kernels:
        print("\nkernels")
    for line in plan.kernels:
        print(f"  {line}")


def _price(plan: Plan) -> None:
    price = plan.machine.chip.price
    kind = plan.item_kind
    items = f"{format_count(plan.items[kind])} {kind}"
    if price is None:
        print(f"\na step has {items}; no public list price is known")
        return
    print(
        f"\na step has {items} and costs {money(plan.usd_per_step)}; a trillion {kind} "
        f"{money(plan.usd_per_trillion_items)}"
    )
    print(f"  at ${price.usd_per_chip_hour:.2f} per chip-hour ({price.offer}, {price.date})")


def bar(share: float) -> str:
    """Draws a fraction as a bar."""
    filled = round(max(0.0, min(1.0, share)) * _BAR)
    return "█" * filled
