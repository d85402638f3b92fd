"""The eight published training steps, planned: predicted seconds beside those that were measured.

The published figures are those of AXLearn's paper (arXiv 2507.05411), with the peers that it
compares with. Each row is planned as its run is known to have been set up, as far as that is
public, and then as arithmetic ranks first and the compiler takes. TPUs and GPUs are compiled for,
with no device.

Two constants are fitted, each by rows of its own kind, and every error is on a row that was left
out of the fit: `kernels` by the TPU rows, `trainium` by the Trainium rows. GPU rows fit nothing.
A row that is planned without another of its kind has no error to show.

    python benchmarks/published.py                   # everything; minutes, and then from the cache
    python benchmarks/published.py --analytic        # seconds: nothing is compiled
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

from dovetail.config import apply_overrides
from dovetail.experiments import find_experiment
from dovetail.plan import (
    FITTED,
    Candidate,
    Constants,
    Plan,
    Planner,
    ProgramCache,
    Ranked,
    candidate_of,
    rank,
)
from dovetail.targets import apply_target, need_no_accelerator

LONG = ("input.sequence_length=16384", "input.batch_size=1024")
PRODUCTS = (
    "(attention_query,attention_key,attention_value,attention_output,"
    "feed_forward_gate,feed_forward_up)"
)


@dataclass(frozen=True)
class Row:
    """One published step.

    Attributes:
        seconds: of AXLearn.
        mfu: of AXLearn, counting full attention.
        peers: the seconds of others.
        mesh: what is known of its mesh; where nothing is, our rule's is taken.
        keep: what is known of what its layers keep.
    """

    experiment: str
    target: str
    seconds: float
    mfu: float
    peers: dict[str, float] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    mesh: dict[str, int] | None = None
    keep: str = ""

    @property
    def name(self) -> str:
        """What `--row` calls it."""
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
        keep=PRODUCTS,
    ),
    Row("llama2-7b", "trn2-1024", 1.2, 0.242),
    Row(
        "llama2-70b",
        "gpu-h100-512",
        9.2,
        0.400,
        {"Megatron": 7.8, "MaxText": 9.4, "FSDP": 10.6},
        mesh={"fsdp": 64, "model": 8},
        keep="nothing",
    ),
    Row(
        "llama2-70b",
        "tpu-v5p-1024",
        11.6,
        0.680,
        {"MaxText": 12.3},
        mesh={"fsdp": 512},
        keep="(attention_output,feed_forward_gate)",
    ),
    Row("llama2-70b", "trn2-1024", 11.2, 0.250),
    Row("qwen3-30b-a3b", "tpu-v5p-1024", 12.86, 0.3158, {"MaxText": 12.97}, LONG),
    Row("qwen3-30b-a3b", "gpu-b200-512", 4.31, 0.1922, {"Megatron": 4.10}, LONG),
)


@dataclass(frozen=True)
class Planned:
    """A row with its plans, by the constants in force."""

    row: Row
    planner: Planner
    as_run: Plan
    best: Plan
    best_candidate: Candidate

    @property
    def kind(self) -> str:
        """The kind of chip."""
        return self.planner.machine.chip.kind

    def seconds(self, constants: Constants) -> float:
        """Returns what is predicted of the published set-up with other constants."""
        timing = self.as_run.timing
        slower = FITTED.trainium / constants.trainium if self.kind == "neuron" else 1.0
        kernels = timing.kernels * FITTED.kernels / constants.kernels
        return slower * (timing.matmul + kernels) + timing.memory + timing.exposed


def plan_row(row: Row, analytic: bool) -> Planned:
    """Plans a row as it was run, and as a search would run it."""
    config = apply_overrides(find_experiment(row.experiment).config(), row.overrides)
    targeted = apply_target(config, row.target)
    planner = Planner(row.experiment, targeted.config, targeted.machine, ProgramCache())
    planner.is_analytic = analytic
    known = _known(row, planner)
    as_run = planner.judged(known)
    best = min(
        [each for each in (Ranked(known, as_run), _first(planner)) if each.plan.fits],
        key=lambda each: each.plan.step_s,
    )
    return Planned(row, planner, as_run, best.plan, best.candidate)


def _first(planner: Planner) -> Ranked:
    """Returns the fastest by arithmetic that the compiler takes."""
    for candidate, _ in rank(planner):
        plan = planner.judged(candidate)
        if plan.fits:
            return Ranked(candidate, plan)
    raise SystemExit(f"{planner.name} on {planner.machine.name}: nothing fits")


def _known(row: Row, planner: Planner) -> Candidate:
    """Returns the published set-up, with as few micro-batches as fit by arithmetic."""
    now = candidate_of(planner.config, planner.machine)
    if row.mesh is None:
        return now
    mesh = dict.fromkeys(dict(now.mesh), 1) | row.mesh
    for parts in (1, 2, 4, 8):
        known = Candidate(tuple(mesh.items()), row.keep, parts, False)
        if planner.rough(known).fits:
            return known
    raise SystemExit(f"{row.name}: the published set-up does not fit by arithmetic")


def fit(rows: Sequence[Planned]) -> Constants:
    """Returns the constants with the least squared error of the logarithm, each by its own rows."""
    grid = [step / 200 for step in range(10, 201)]

    def best(kind: str, name: str) -> float:
        own = [each for each in rows if each.kind == kind]

        def error(value: float) -> float:
            constants = replace(FITTED, **{name: value})
            return sum(math.log(each.seconds(constants) / each.row.seconds) ** 2 for each in own)

        return min(grid, key=error) if own else getattr(FITTED, name)

    return Constants(kernels=best("tpu", "kernels"), trainium=best("neuron", "trainium"))


def report(rows: Sequence[Planned]) -> list[dict[str, Any]]:
    """Returns each row with the error of constants that were fitted without it."""
    found = []
    for each in rows:
        others = [other for other in rows if other is not each]
        constants = fit(others)
        predicted = each.seconds(constants)
        # Constants come from rows of the same kind, but for GPUs, by which nothing is fitted.
        is_left_out = each.kind == "gpu" or any(other.kind == each.kind for other in others)
        found.append(
            {
                "row": each.row.name,
                "published_s": each.row.seconds,
                "published_mfu": each.row.mfu,
                "peers": each.row.peers,
                "source": each.as_run.source,
                "time_source": each.as_run.time_source,
                "fits": each.as_run.fits,
                "memory_gb": each.as_run.memory.total * _devices(each) / 1e9,
                "predicted_s": predicted,
                "predicted_mfu": each.as_run.mfu * each.as_run.step_s / predicted,
                "error": predicted / each.row.seconds - 1 if is_left_out else None,
                "constants_without_it": vars(constants),
                "best_s": each.best.step_s,
                "best_mfu": each.best.mfu,
                "best": str(each.best_candidate),
                "best_fits": each.best.fits,
                "best_memory_gb": each.best.memory.total * _devices(each) / 1e9,
                "compile_s": each.as_run.compile_s,
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
    need_no_accelerator()
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
        "| step | published s | MFU | peers | memory by, GB a chip | time by | predicted s | MFU "
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
