"""A plan, printed for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.cli.output import count, size
from dovetail.hardware import MFU_FORMULA
from dovetail.plan import Plan, Ranked, Row, Search, Verified

_BAR = 30
MEMORY = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "activations": "kept for the backward pass",
    "temporaries": "temporaries",
}
SECONDS = {
    "matmul": "matrix products",
    "kernels": "hand-written kernels",
    "memory": "bound by memory",
    "exposed": "communication waited for",
}


def in_one_line(plan: Plan) -> str:
    """Says the most important of a plan."""
    return f"{plan.source}: {verdict(plan)}; a step {seconds(plan)}, MFU {plan.mfu:.1%}" + (
        f", {money(plan.usd_per_step)} a step" if plan.usd_per_step is not None else ""
    )


def verdict(plan: Plan) -> str:
    """Says whether it fits, and how tightly."""
    chip = plan.machine.chip.devices_per_chip
    total, limit = plan.memory.total * chip, plan.memory.limit * chip
    share = f"{size(total)} of {size(limit)} a chip"
    if plan.fits:
        return f"fits, {share} ({total / limit:.0%})"
    over = total - limit
    return f"does not fit, {share}: {size(over)} too much" if over > 0 else f"does not fit, {share}"


def seconds(plan: Plan) -> str:
    """Writes the time of a step with how far it may be off."""
    return f"{duration(plan.step_s)} ({plan.time_source}, within {plan.error_band:.0%})"


def duration(value: float) -> str:
    """Writes a time the way people say it."""
    if value >= 86_400:
        return f"{value / 86_400:.3g} days"
    if value >= 3600:
        return f"{value / 3600:.3g} hours"
    if value >= 300:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 0.1 else f"{value * 1e3:.3g} ms"


def money(value: float | None) -> str:
    """Writes dollars; a question mark where no price is known."""
    if value is None:
        return "?"
    return f"${value:,.0f}" if value >= 100 else f"${value:,.3g}"


def print_plan(plan: Plan) -> None:
    """Prints all of a plan."""
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
    """Says where the figures come from."""
    if plan.compile_s is None:
        return "analytic: by arithmetic, nothing was compiled"
    if plan.refusal:
        return f"the compiler refused it after {duration(plan.compile_s)}"
    return f"compiled in {duration(plan.compile_s)}"


def print_remedies(plan: Plan, found: Sequence[Ranked]) -> None:
    """Says what takes the room, and what would fit."""
    largest = max(MEMORY, key=lambda name: float(getattr(plan.memory, name)))
    chip = plan.machine.chip.devices_per_chip
    state = plan.memory.parameters + plan.memory.optimizer
    if state > plan.memory.limit:
        print(f"\nparameters and optimizer alone take {size(state * chip)}")
    else:
        room = size(getattr(plan.memory, largest) * chip)
        print(f"\nthe largest part is {MEMORY[largest]}: {room}")
    if not found:
        print("nothing was found that fits: more chips, a shorter sequence or a smaller model")
        return
    how = "each compiled" if found[0].plan.source == "compiled" else "by arithmetic alone"
    print(f"the nearest changes that fit, {how}:")
    _print_ranked(found)


def print_search(found: Search) -> None:
    """Prints what a search has found, and what it is compared with."""
    print(f"{found.considered:,} candidates ranked by arithmetic; the best of them:")
    _print_ranked(found.verified)
    print(f"the rule: {in_one_line(found.rule)}")
    best = found.best
    if best is None:
        print("nothing was found that fits")
        return
    gain = 1 - best.plan.step_s / found.rule.step_s
    if not found.rule.fits:
        print("the rule's own choice does not fit")
    elif gain > 0:
        print(f"the best takes {gain:.1%} less time a step than the rule's choice")
    else:
        print("the rule's choice is the best")


def print_verified(found: Verified) -> None:
    """Prints a run beside its plan."""
    print(f"{found.run} on {found.chip}")
    print(
        f"  a step   predicted {duration(found.predicted_s)}, measured "
        f"{duration(found.measured_s)}: {found.time_ratio:.2f} times as long"
    )
    if found.measured_bytes is None or found.memory_ratio is None:
        print("  memory   the run noted none (it is noted on Linux, by runs on a CPU)")
        return
    print(
        f"  memory   beside state and batch, planned {size(found.planned_bytes)}, measured "
        f"{size(found.measured_bytes)}: {found.memory_ratio:.2f} times as much"
    )


def plan_facts(plan: Plan, found: Sequence[Ranked]) -> dict[str, Any]:
    """Returns a plan for machines, with what would fit where it does not."""
    facts = plan.facts()
    return facts if plan.fits else facts | {"remedies": [_ranked_facts(each) for each in found]}


def search_facts(found: Search) -> dict[str, Any]:
    """Returns what a search has found, for machines."""
    best = found.best
    return {
        "considered": found.considered,
        "rule": found.rule.facts(),
        "best": None if best is None else _ranked_facts(best),
        "verified": [_ranked_facts(each) for each in found.verified],
    }


def print_rows(name: str, rows: Sequence[Row], by: str) -> None:
    """Prints one experiment on many machines."""
    print(f"{name} by arithmetic, sorted by {by}; seconds within 50%, prices as listed")
    print(
        f"{'target':<19}{'chips':>6}{'smallest':>10}{'memory':>10}{'a step':>10}{'MFU':>8}"
        f"{'in all':>11}{'costs':>13}  how"
    )
    for row in rows:
        smallest = "?" if row.smallest is None else str(row.smallest)
        line = f"{row.machine.name:<19}{row.machine.chips:>6}{smallest:>10}"
        if row.best is None or row.seconds is None:
            print(f"{line}  does not fit: {row.reason}")
            continue
        plan = row.best.plan
        memory = size(plan.memory.total * row.machine.chip.devices_per_chip)
        print(
            f"{line}{memory:>10}{duration(plan.step_s):>10}{plan.mfu:>8.1%}"
            f"{duration(row.seconds):>11}{money(row.usd):>13}  {row.best.candidate}"
        )


def row_facts(row: Row) -> dict[str, Any]:
    """Returns one machine's line, for machines."""
    return {
        "target": row.machine.name,
        "chips": row.machine.chips,
        "smallest_chips": row.smallest,
        "fits": row.best is not None,
        "reason": row.reason,
        "source": "analytic",
        "seconds": row.seconds,
        "usd": row.usd,
        "best": None if row.best is None else _ranked_facts(row.best),
    }


def _ranked_facts(each: Ranked) -> dict[str, Any]:
    chosen = {"mesh": each.candidate.sizes(), "modifiers": each.candidate.modifiers()}
    return {"candidate": chosen, "plan": each.plan.facts()}


def _print_ranked(found: Sequence[Ranked]) -> None:
    for candidate, plan in found:
        chip = plan.machine.chip.devices_per_chip
        room = f"{size(plan.memory.total * chip)} a chip"
        fits = "" if plan.fits else "  does not fit"
        time = f"{duration(plan.step_s):>8} a step ({plan.time_source})"
        print(f"  {time}  {room:>14} ({plan.source}){fits}  {candidate}")


def _memory(plan: Plan) -> None:
    chip = plan.machine.chip.devices_per_chip
    print("\nmemory a chip")
    for name, label in MEMORY.items():
        value = getattr(plan.memory, name)
        print(f"  {label:<28}{size(value * chip):>9}  {bar(value / plan.memory.limit)}")
    if plan.memory.host:
        print(f"  {'in the host’s memory':<28}{size(plan.memory.host * chip):>9}")


def _seconds(plan: Plan) -> None:
    print(f"\na step: {seconds(plan)}")
    for name, label in SECONDS.items():
        value = getattr(plan.timing, name)
        print(f"  {label:<28}{duration(value):>9}  {bar(value / plan.step_s)}")
    if plan.timing.hidden:
        print(f"  {'communication behind others':<28}{duration(plan.timing.hidden):>9}")
    peak = f"{plan.machine.devices} x {plan.peak_flops / 1e12:.4g} TFLOP/s"
    work = f"{count(int(plan.model_flops))} FLOP"
    print(f"  MFU {plan.mfu:.1%} = {work} / {plan.step_s:.3g} s / ({peak})")
    print(f"  {MFU_FORMULA}")
    if plan.mfu > 1:
        print("  above 100%: the formula counts attention in full, which a mask skips here")


def _communication(plan: Plan) -> None:
    if not plan.exchanges:
        return
    print("\ncommunication a step, of one device")
    for each in plan.exchanges:
        times = f"in {each.count:,.0f}"
        print(
            f"  {each.kind:<20}{'over ' + each.axes:<18}{size(each.bytes):>9}  {times:<13}"
            f"{duration(each.seconds):>9}"
        )


def _kernels(plan: Plan) -> None:
    if plan.kernels:
        print("\nkernels")
    for line in plan.kernels:
        print(f"  {line}")


def _price(plan: Plan) -> None:
    price = plan.machine.chip.price
    tokens = f"{count(plan.tokens)} tokens"
    if price is None:
        print(f"\na step has {tokens}; no public list price is known")
        return
    print(
        f"\na step has {tokens} and costs {money(plan.usd_per_step)}; a trillion tokens "
        f"{money(plan.usd_per_trillion_tokens)}"
    )
    print(f"  at ${price.usd_per_chip_hour:.2f} an hour and chip ({price.offer}, {price.date})")


def bar(share: float) -> str:
    """Draws a share of one."""
    filled = round(max(0.0, min(1.0, share)) * _BAR)
    return "█" * filled
