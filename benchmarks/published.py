"""Eight published training steps: predicted and measured seconds.

The published numbers are from AXLearn's paper (arXiv 2507.05411), with the systems that it compares
with. Each row is planned in its published set-up as far as that is known, and then with the fastest
analytic candidate that the compiler accepts. TPU and GPU rows are compiled, without devices.

Two constants are fitted: `kernels` to the TPU rows, and `trainium` to the Trainium rows. Every
error is on a row that was held out of the fit. GPU rows are not fitted. A row that is planned
without another of its kind has no error.

    python benchmarks/published.py                   # everything; minutes, then from the cache
    python benchmarks/published.py --analytic        # seconds: compiles nothing
    python benchmarks/published.py --row llama2-7b/tpu-v5p-512
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.config import ConfigOf, apply_overrides
from dovetail.experiments import find_experiment
from dovetail.parallel import Remat, SaveNamed, SaveNothing
from dovetail.plan import (
    FITTED_CONSTANTS,
    Candidate,
    Plan,
    Planner,
    ProgramCache,
    RankedPlan,
    RooflineConstants,
    configured_candidate,
    rank_candidates,
)
from dovetail.targets import apply_target, default_to_cpu

LONG = ("input.sequence_length=16384", "input.batch_size=1024")
PRODUCTS = (
    "attention_query",
    "attention_key",
    "attention_value",
    "attention_output",
    "feed_forward_gate",
    "feed_forward_up",
)


@dataclass(frozen=True)
class Row:
    """One published step.

    Attributes:
        experiment: the experiment to plan.
        target: the machine.
        seconds: published by AXLearn.
        mfu: published by AXLearn, counting full attention.
        peers: seconds of other systems.
        overrides: `key=value` overrides of the experiment.
        mesh: the published mesh; None takes the rule's.
        remat: the published remat policy; None leaves that of the experiment.
    """

    experiment: str
    target: str
    seconds: float
    mfu: float
    peers: dict[str, float] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    mesh: dict[str, int] | None = None
    remat: ConfigOf[Remat] | None = None

    @property
    def name(self) -> str:
        """The value of `--row`."""
        return f"{self.experiment}/{self.target}"


ROWS = (
    Row("llama2-7b", "gpu-h100-256", 1.4, 0.542, {"MaxText": 1.4, "Megatron": 1.7, "FSDP": 2.6}),
    Row(
        "llama2-7b",
        "tpu-v5p-512",
        2.5,
        0.662,
        {"MaxText": 2.7, "XLA-FSDP": 3.5},
        mesh={"data": 4, "fsdp": 64},
        remat=SaveNamed.Config(names=PRODUCTS),
    ),
    Row("llama2-7b", "trn2-1024", 1.2, 0.242),
    Row(
        "llama2-70b",
        "gpu-h100-512",
        9.2,
        0.400,
        {"Megatron": 7.8, "MaxText": 9.4, "FSDP": 10.6},
        mesh={"fsdp": 64, "model": 8},
        remat=SaveNothing.Config(),
    ),
    Row(
        "llama2-70b",
        "tpu-v5p-1024",
        11.6,
        0.680,
        {"MaxText": 12.3},
        mesh={"fsdp": 512},
        remat=SaveNamed.Config(names=("attention_output", "feed_forward_gate")),
    ),
    Row("llama2-70b", "trn2-1024", 11.2, 0.250),
    Row("qwen3-30b-a3b", "tpu-v5p-1024", 12.86, 0.3158, {"MaxText": 12.97}, LONG),
    Row("qwen3-30b-a3b", "gpu-b200-512", 4.31, 0.1922, {"Megatron": 4.10}, LONG),
)


@dataclass(frozen=True)
class Planned:
    """A row with its plans, by the current constants."""

    row: Row
    planner: Planner
    as_published: Plan
    best: Plan
    best_candidate: Candidate

    @property
    def platform(self) -> str:
        """The JAX platform of the chip."""
        return self.planner.machine.chip.platform

    def seconds(self, constants: RooflineConstants) -> float:
        """Returns the prediction for the published set-up with other constants."""
        timing = self.as_published.timing
        slower = (
            FITTED_CONSTANTS.trainium / constants.trainium if self.platform == "neuron" else 1.0
        )
        kernels = timing.kernels * FITTED_CONSTANTS.kernels / constants.kernels
        return slower * (timing.matmul + kernels) + timing.memory + timing.exposed


def plan_row(row: Row, analytic: bool) -> Planned:
    """Plans a row as published, and as a search would run it."""
    config = apply_overrides(find_experiment(row.experiment).config(), row.overrides)
    targeted = apply_target(config, row.target)
    planner = Planner(row.experiment, targeted.config, targeted.machine, ProgramCache())
    planner.is_analytic = analytic
    published = _published_candidate(row, planner)
    as_published = planner.plan_or_refusal(published)
    best = min(
        [each for each in (RankedPlan(published, as_published), _first(planner)) if each.plan.fits],
        key=lambda each: each.plan.step_seconds,
    )
    return Planned(row, planner, as_published, best.plan, best.candidate)


def _first(planner: Planner) -> RankedPlan:
    """Returns the fastest analytic candidate that the compiler accepts."""
    for candidate, _ in rank_candidates(planner):
        plan = planner.plan_or_refusal(candidate)
        if plan.fits:
            return RankedPlan(candidate, plan)
    raise SystemExit(f"{planner.name} on {planner.machine.name}: nothing fits")


def _published_candidate(row: Row, planner: Planner) -> Candidate:
    """Returns the published set-up, with the fewest microbatches that fit analytically."""
    now = configured_candidate(planner.config, planner.machine)
    if row.mesh is None:
        return now
    mesh = dict.fromkeys(dict(now.mesh), 1) | row.mesh
    for microbatches in (1, 2, 4, 8):
        candidate = Candidate(tuple(mesh.items()), row.remat, microbatches, False)
        if planner.analytic_plan(candidate).fits:
            return candidate
    raise SystemExit(f"{row.name}: the published set-up does not fit analytically")


def fit(rows: Sequence[Planned]) -> RooflineConstants:
    """Returns the constants with the least squared log error, each fitted to its own rows."""
    grid = [step / 200 for step in range(10, 201)]

    def best(platform: str, name: str) -> float:
        own = [each for each in rows if each.platform == platform]

        def error(value: float) -> float:
            constants = replace(FITTED_CONSTANTS, **{name: value})
            return sum(math.log(each.seconds(constants) / each.row.seconds) ** 2 for each in own)

        return min(grid, key=error) if own else getattr(FITTED_CONSTANTS, name)

    return RooflineConstants(kernels=best("tpu", "kernels"), trainium=best("neuron", "trainium"))


def report(rows: Sequence[Planned]) -> list[dict[str, Any]]:
    """Returns each row with its error under constants that were fitted without it."""
    found = []
    for each in rows:
        others = [other for other in rows if other is not each]
        constants = fit(others)
        predicted = each.seconds(constants)
        # Constants are fitted to rows of the same platform; nothing is fitted to GPU rows.
        is_held_out = each.platform == "gpu" or any(
            other.platform == each.platform for other in others
        )
        found.append(
            {
                "row": each.row.name,
                "published_s": each.row.seconds,
                "published_mfu": each.row.mfu,
                "peers": each.row.peers,
                "source": each.as_published.source,
                "time_source": each.as_published.time_source,
                "fits": each.as_published.fits,
                "memory_gb": each.as_published.memory.total * _devices(each) / 1e9,
                "predicted_s": predicted,
                "predicted_mfu": each.as_published.mfu * each.as_published.step_seconds / predicted,
                "error": predicted / each.row.seconds - 1 if is_held_out else None,
                "constants_without_it": vars(constants),
                "best_s": each.best.step_seconds,
                "best_mfu": each.best.mfu,
                "best": str(each.best_candidate),
                "best_fits": each.best.fits,
                "best_memory_gb": each.best.memory.total * _devices(each) / 1e9,
                "compile_s": each.as_published.compile_seconds,
            }
        )
    return found


def _devices(each: Planned) -> int:
    return each.planner.machine.chip.devices_per_chip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--analytic", action="store_true", help="compile nothing")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    default_to_cpu()
    planned = []
    for row in ROWS:
        if arguments.row and row.name not in arguments.row:
            continue
        start = time.monotonic()
        planned.append(plan_row(row, arguments.analytic))
        print(f"{row.name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    rows = report(planned)
    if arguments.json:
        print(json.dumps({"rows": rows, "constants": vars(fit(planned))}, indent=2))
        return
    print(
        "| step | published s | MFU | peers | memory by, GB per chip | time by | predicted s | MFU "
        "| error | best found s | MFU |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for each in rows:
        peers = ", ".join(f"{name} {seconds:g}" for name, seconds in each["peers"].items()) or "–"
        error = "–" if each["error"] is None else f"{each['error']:+.0%}"
        fits = "" if each["fits"] else ", does not fit"
        print(
            f"| {each['row']} | {each['published_s']:g} | {each['published_mfu']:.1%} | {peers} "
            f"| {each['source']}, {each['memory_gb']:.0f}{fits} | {each['time_source']} "
            f"| {each['predicted_s']:.2f} | {each['predicted_mfu']:.1%} | {error} "
            f"| {each['best_s']:.2f} | {each['best_mfu']:.1%} |"
        )
    constants = fit(planned)
    print(f"\nfitted: kernels {constants.kernels:.3f}, trainium {constants.trainium:.3f}")
    for each in rows:
        print(f"{each['row']}: {each['best']}, {each['best_memory_gb']:.1f} GB")
    if not all(each["fits"] for each in rows):
        sys.exit("a published set-up does not fit")


if __name__ == "__main__":
    main()
