"""A plot of MFU from 256 to 32,768 v5p chips by the analytic model, with published points.

Weak scaling grows the batch with the chips, two sequences each. Strong scaling keeps it constant.
Every size uses the fastest candidate that fits. With `--compiled`, the compute time is scaled to
that of the program compiled for 512 chips; communication stays analytic.

    python benchmarks/scaling.py [--compiled] [--write docs/plan-scaling.svg]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.config import apply_modifier, apply_overrides
from dovetail.experiments import find_experiment
from dovetail.models.llama import llama
from dovetail.plan import Plan, Planner, ProgramCache, rank_candidates
from dovetail.targets import apply_target, default_to_cpu

# Chips and MFU on TPUs, from AXLearn's paper (arXiv 2507.05411). It gives only the size of the 150B
# model; ours has Llama's shape.
PUBLISHED = {
    "70B": [(256, 0.630), (4096, 0.524)],
    "150B": [(8192, 0.406), (32768, 0.376)],
}
SIZES = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
LARGEST_SLICE = 4096
SEQUENCES_A_CHIP = 2
STRONG_BATCH = 4096
COMPILED_AT = 512


def experiment(name: str, batch: int) -> Any:
    """Returns an experiment of Llama's shape with the given batch size."""
    config = find_experiment("llama2-70b").config()
    if name == "150B":
        config.model = llama(
            width=12288, num_layers=96, num_heads=96, num_kv_heads=8, hidden=32768, vocab_size=32000
        )
        config = apply_modifier(config, "bf16")
    return apply_overrides(config, [f"input.batch_size={batch}"])


def machine_name(chips: int) -> str:
    """Returns the target of that many v5p chips, in slices of at most 4,096; names count cores."""
    slices = max(1, chips // LARGEST_SLICE)
    name = f"tpu-v5p-{2 * chips // slices}"
    return name if slices == 1 else f"{slices}x{name}"


def best(name: str, chips: int, batch: int) -> tuple[Planner, Plan] | None:
    """Returns the fastest analytic plan that fits that many chips."""
    targeted = apply_target(experiment(name, batch), machine_name(chips))
    planner = Planner(name, targeted.config, targeted.machine, ProgramCache())
    found = next((each for each in rank_candidates(planner) if each.plan.fits), None)
    return None if found is None else (planner, found.plan)


def correction(name: str) -> float:
    """Returns the compute time of the compiled program over that of the analytic plan."""
    targeted = apply_target(
        experiment(name, COMPILED_AT * SEQUENCES_A_CHIP), machine_name(COMPILED_AT)
    )
    planner = Planner(name, targeted.config, targeted.machine, ProgramCache())
    first = next(each for each in rank_candidates(planner) if each.plan.fits)
    compiled = planner.compiled_plan(first.candidate)
    if not compiled.fits:
        raise SystemExit(f"{name} on {COMPILED_AT} chips: the compiler refuses the analytic choice")
    exact, analytic = compiled.timing, first.plan.timing
    return (exact.total - exact.exposed) / (analytic.total - analytic.exposed)


def curve(name: str, batch: int | None, factor: float) -> Iterator[tuple[int, float, Plan]]:
    """Yields chips, MFU and plan; with a batch of None, the batch grows with the chips."""
    for chips in SIZES:
        found = best(name, chips, batch or chips * SEQUENCES_A_CHIP)
        if found is None:
            print(f"{name} on {chips}: nothing fits", file=sys.stderr)
            continue
        plan = found[1]
        computed = factor * (plan.timing.total - plan.timing.exposed)
        seconds = computed + plan.timing.exposed
        yield chips, plan.mfu * plan.step_seconds / seconds, plan
        print(f"{name} on {chips}: {seconds:.2f} s, {plan.mesh}", file=sys.stderr, flush=True)


Points = Sequence[tuple[int, float]]
_COLOURS = {"70B": "#4477aa", "150B": "#aa3377"}
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 50, 30


def drawn(weak: Mapping[str, Points], strong: Mapping[str, Points]) -> str:
    """Draws curves, and published points as circles, over the logarithm of chips."""
    parts = [f'<rect width="100%" height="100%" fill="white"/>{_axes()}']
    for name, points in weak.items():
        parts.append(_line(points, _COLOURS[name]))
    for name, points in strong.items():
        parts.append(_line(points, _COLOURS[name], ' stroke-dasharray="5 4"'))
    for name, points in PUBLISHED.items():
        for chips, mfu in points:
            x, y = _place(chips, mfu)
            parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{_COLOURS[name]}"/>')
    legend = [
        ("#4477aa", "", "70B, weak (dashed: strong, 4,096 sequences)"),
        ("#aa3377", "", "150B of Llama's shape, weak"),
    ]
    below = _place(256, 0.2)[1] - 10
    for index, (colour, _, text) in enumerate(legend):
        y = below + 18 * index
        parts.append(
            f'<line x1="{_LEFT + 20}" x2="{_LEFT + 44}" y1="{y}" y2="{y}" stroke="{colour}" '
            f'stroke-width="3"/><text x="{_LEFT + 50}" y="{y + 4}">{text}</text>'
        )
    y = below + 36
    parts.append(
        f'<circle cx="{_LEFT + 32}" cy="{y}" r="5" fill="#777"/>'
        f'<text x="{_LEFT + 50}" y="{y + 4}">published (circles, by colour)</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + 50}" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>\n'
    )


def _place(chips: float, mfu: float) -> tuple[float, float]:
    across = (math.log2(chips) - 8) / 7
    return (
        round(_LEFT + across * (_WIDTH - _LEFT - 30), 1),
        round(_HEIGHT - mfu / 0.8 * (_HEIGHT - _TOP), 1),
    )


def _axes() -> str:
    parts = []
    for percent in range(0, 81, 20):
        x, y = _place(256, percent / 100)
        parts.append(
            f'<line x1="{x}" x2="{_WIDTH - 30}" y1="{y}" y2="{y}" stroke="#ddd"/>'
            f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{percent}%</text>'
        )
    for chips in SIZES:
        x, y = _place(chips, 0)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{chips:,}</text>')
    x, _ = _place(math.sqrt(256 * 32768), 0)
    parts.append(f'<text x="{x}" y="{_HEIGHT + 38}" text-anchor="middle">v5p chips</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 10}" font-weight="bold">MFU</text>')
    return "".join(parts)


def _line(points: Points, colour: str, more: str = "") -> str:
    xy = " ".join(f"{x},{y}" for x, y in (_place(*point) for point in points))
    return f'<polyline points="{xy}" fill="none" stroke="{colour}" stroke-width="2.5"{more}/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE.svg")
    arguments = parser.parse_args()
    default_to_cpu()
    factors = {name: correction(name) if arguments.compiled else 1.0 for name in PUBLISHED}
    weak = {
        name: [(chips, mfu) for chips, mfu, _ in curve(name, None, factors[name])]
        for name in PUBLISHED
    }
    strong = {"70B": [(n, mfu) for n, mfu, _ in curve("70B", STRONG_BATCH, factors["70B"])]}
    if arguments.write is not None:
        arguments.write.write_text(drawn(weak, strong), encoding="utf-8")
    print(json.dumps({"factors": factors, "weak": weak, "strong": strong, "published": PUBLISHED}))


if __name__ == "__main__":
    main()
