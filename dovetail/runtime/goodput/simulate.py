"""Simulates a run with failures: goodput at a number of hosts, the best save intervals, spares.

The simulation runs from event to event: a failure strikes and is detected, a host is replaced, the
job starts, restores a checkpoint, and trains until the next failure. Failures are a Poisson
process and strike during recovery, too. A save costs a stall, and counts once it is written. There
are two tiers: frequent saves to local storage with a copy at a peer, and durable ones. A share of
failures destroys the local tier. This module imports no JAX.

`first_order` is the closed formula beside it. For failures per second L, seconds to detect and
restart R, interval t, stall s and write time w of each tier k that L_k of the failures need:

    goodput = (1 - sum_k L_k (R_k + w_k + t_k / 2)) / (1 + sum_k s_k / t_k)
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, stdev
from typing import Any

from dovetail.config import ConfigError
from dovetail.runtime.goodput.account import Goodput

_DAY = 86400.0
_REPEATS = 20
_FACTORS = tuple(2 ** (power / 2) for power in range(-4, 5))
SPARES = (0, 1, 2, 4, 8, 16)


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure.

    Attributes:
        name: what fails.
        weight: how often, relative to the other kinds.
        loses_host: whether the host has to be replaced.
        hangs: whether it is a hang, which the watchdog detects.
    """

    name: str
    weight: float
    loses_host: bool = False
    hangs: bool = False


LLAMA3 = (
    FailureKind("GPU and its memory", 262, loses_host=True),
    FailureKind("software", 56),
    FailureKind("network", 35),
    FailureKind("host maintenance", 32, loses_host=True),
    FailureKind("other hardware of a host", 21, loses_host=True),
    FailureKind("hang", 7, hangs=True),
    FailureKind("silent data corruption", 6, loses_host=True),
)
"""The 419 unexpected interruptions of the Llama 3 pre-training (arXiv 2407.21783, table 5)."""

BYTEROBUST = (
    FailureKind("CUDA error", 36, loses_host=True),
    FailureKind("change of code or data", 17),
    FailureKind("CPU overload", 11),
    FailureKind("CPU out of memory", 10),
    FailureKind("hang", 10, hangs=True),
    FailureKind("disk full", 5),
    FailureKind("InfiniBand", 3, loses_host=True),
    FailureKind("file system not mounted", 2),
    FailureKind("NaN", 0.3),
    FailureKind("other", 5.7),
)
"""Shares in 778,000 jobs (ByteRobust, arXiv 2509.16293)."""

FAILURE_KINDS: Mapping[str, Sequence[FailureKind]] = {"llama3": LLAMA3, "byterobust": BYTEROBUST}


RATES: Mapping[str, float] = {
    "llama3": 419 / 54 / 2048 * 1000,
    "rsc-1": 6.50,
    "rsc-2": 2.34,
    "ft-hsdp": 2.3,
}
"""Failures per 1,000 host-days: Llama 3 (arXiv 2407.21783), Meta's clusters RSC-1 and RSC-2 (arXiv
2410.21680), and FT-HSDP (arXiv 2602.00277)."""


@dataclass(frozen=True)
class Tier:
    """A place for checkpoints; all times are seconds.

    Attributes:
        interval: of training between two saves.
        stall: that training waits for a save.
        write: until a save is complete; training continues meanwhile.
        restore: to read one back.
    """

    interval: float
    stall: float
    write: float
    restore: float


@dataclass(frozen=True)
class Scenario:
    """A job, its failures and its checkpoints; all times are seconds.

    Attributes:
        hosts: that the job needs.
        rate: failures per 1,000 host-days.
        job_failures_per_day: failures of the job as such, however many hosts it has.
        kinds: the kinds of failures.
        detect: until a crash is noticed.
        detect_hang: until a hang is noticed.
        start: from detection to the restore: processes, compilation, meeting peers.
        spare_start: the same if a warm spare takes over.
        replacement: to get another host if no spare is left.
        repair: until a lost host is a spare again.
        spares: hosts that wait to replace another.
        local: the tier of frequent saves; None if there is only the durable one.
        durable: the tier that survives everything.
        durable_share: of the failures that destroy the local tier.
    """

    hosts: int = 2048
    rate: float = 3.8
    job_failures_per_day: float = 0.0
    kinds: Sequence[FailureKind] = LLAMA3
    detect: float = 15.0
    detect_hang: float = 300.0
    start: float = 120.0
    spare_start: float = 45.0
    replacement: float = 600.0
    repair: float = 4 * 3600.0
    spares: int = 8
    local: Tier | None = Tier(interval=60.0, stall=0.3, write=5.0, restore=30.0)
    durable: Tier = Tier(interval=1200.0, stall=0.5, write=120.0, restore=300.0)
    durable_share: float = 0.02

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for each in (self, self.local, self.durable):
            for name in () if each is None else [each_field.name for each_field in fields(each)]:
                value = getattr(each, name)
                if isinstance(value, int | float) and not 0 <= value < math.inf:
                    raise ConfigError(f"{name}: expected 0 or more, got {value}.")
                if name in ("hosts", "interval") and not value:
                    raise ConfigError(f"{name}: expected more than 0.")
        if self.durable_share > 1:
            raise ConfigError(f"durable_share: expected 0 to 1, got {self.durable_share}.")

    @property
    def failures_per_second(self) -> float:
        """How often the job fails."""
        return (self.rate / 1000 * self.hosts + self.job_failures_per_day) / _DAY

    def tiers(self) -> list[tuple[Tier, float]]:
        """Returns each tier with the share of failures after which it is restored from."""
        if self.local is None:
            return [(self.durable, 1.0)]
        return [(self.local, 1 - self.durable_share), (self.durable, self.durable_share)]

    def with_intervals(self, intervals: Sequence[float]) -> Scenario:
        """Returns the scenario with other save intervals, one for each tier."""
        changed = [
            replace(tier, interval=interval)
            for (tier, _), interval in zip(self.tiers(), intervals, strict=True)
        ]
        return replace(self, local=changed[0] if len(changed) > 1 else None, durable=changed[-1])


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        goodput: the mean productive fraction of the simulated runs.
        error: the standard error of that mean.
        seconds: by class, in all simulated runs.
        failures: in all simulated runs.
    """

    goodput: float
    error: float
    seconds: Mapping[str, float]
    failures: int

    @property
    def lost_per_failure(self) -> float:
        """The mean seconds that a failure costs, repeated steps included."""
        lost = sum(s for name, s in self.seconds.items() if name not in ("step", "save"))
        return lost / self.failures if self.failures else 0.0

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "goodput": self.goodput,
            "standard_error": self.error,
            "seconds": dict(self.seconds),
            "failures": self.failures,
            "lost_per_failure": self.lost_per_failure,
        }


def simulate(
    scenario: Scenario, days: float = 54.0, seed: int = 0, repeats: int = _REPEATS
) -> Simulation:
    """Simulates runs of so many days; the same seed gives the same result."""
    runs = [_Run(scenario, random.Random(f"{seed}/{n}")) for n in range(repeats)]
    for run in runs:
        run.go(days * _DAY)
    fractions = [run.seconds["step"] / run.now for run in runs]
    return Simulation(
        fmean(fractions),
        stdev(fractions) / math.sqrt(repeats) if repeats > 1 else 0.0,
        {name: sum(run.seconds[name] for run in runs) for name in runs[0].seconds},
        sum(run.failures for run in runs),
    )


def first_order(scenario: Scenario) -> float:
    """Returns the goodput by the closed formula: each failure is alone, spares never run out."""
    weight = sum(kind.weight for kind in scenario.kinds)
    hangs = sum(kind.weight for kind in scenario.kinds if kind.hangs) / weight
    losses = sum(kind.weight for kind in scenario.kinds if kind.loses_host) / weight
    recovery = scenario.detect * (1 - hangs) + scenario.detect_hang * hangs
    if scenario.spares:
        recovery += scenario.spare_start
    else:
        recovery += scenario.start + losses * scenario.replacement
    rate, lost, stalls = scenario.failures_per_second, 0.0, 0.0
    for tier, share in scenario.tiers():
        interval = max(tier.interval, tier.write)
        lost += rate * share * (recovery + tier.restore + tier.write + interval / 2)
        stalls += tier.stall / interval
    return max(0.0, 1 - lost) / (1 + stalls)


def young_intervals(scenario: Scenario) -> list[float]:
    """Returns sqrt(2 s_k / L_k) of each tier: Young's rule, in its multi-level form.

    L_k are the failures that need tier k (Benoit et al., IEEE TC 2017). An interval is at least
    the time that a save takes to write.
    """
    return [_clipped(tier, math.sqrt(2 * tier.stall * mtbf)) for tier, mtbf in _mtbfs(scenario)]


def daly_intervals(scenario: Scenario) -> list[float]:
    """Returns the same by Daly's higher-order estimate (FGCS 2006)."""
    intervals = []
    for tier, mtbf in _mtbfs(scenario):
        x = tier.stall / (2 * mtbf)
        if math.isinf(mtbf):
            intervals.append(_clipped(tier, mtbf))
            continue
        interval = math.sqrt(2 * tier.stall * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - tier.stall
        intervals.append(_clipped(tier, interval if x < 1 else mtbf))
    return intervals


def best_intervals(scenario: Scenario, days: float = 54.0, seed: int = 0) -> list[float]:
    """Returns the save intervals with the best simulated goodput, within sqrt(2) of a grid.

    All candidates meet the same failures. One tier is searched after the other, twice.
    """
    best = young_intervals(scenario)

    def value(intervals: list[float]) -> float:
        return simulate(scenario.with_intervals(intervals), days, seed).goodput

    for _ in range(2):
        for number, (tier, _) in enumerate(scenario.tiers()):
            around = {_clipped(tier, best[number] * factor) for factor in _FACTORS}
            candidates = [[*best[:number], each, *best[number + 1 :]] for each in sorted(around)]
            best = max(candidates, key=value)
    return best


def compare_intervals(
    scenario: Scenario, days: float = 54.0, seed: int = 0
) -> dict[str, tuple[list[float], float]]:
    """Returns the intervals of both tiers by several rules, each with the simulated goodput."""
    intervals = {
        "as given": [tier.interval for tier, _ in scenario.tiers()],
        "best simulated": best_intervals(scenario, days, seed),
        "Young, multi-level": young_intervals(scenario),
        "Daly": daly_intervals(scenario),
    }
    return {
        name: (each, simulate(scenario.with_intervals(each), days, seed).goodput)
        for name, each in intervals.items()
    }


def compare_spares(scenario: Scenario, days: float = 54.0, seed: int = 0) -> dict[int, float]:
    """Returns the simulated goodput with so many spare hosts."""
    return {
        count: simulate(replace(scenario, spares=count), days, seed).goodput for count in SPARES
    }


def measured(found: Goodput, scenario: Scenario) -> Scenario:
    """Returns a scenario with the phase times of a run: start, restore and stall, as means.

    They come from its restarts, or from its first start if it has none.
    """
    lives: dict[int, dict[str, float]] = {}
    for span in found.timeline:
        life = lives.setdefault(span.life, {})
        for name, seconds in span.seconds.items():
            life[name] = life.get(name, 0.0) + seconds
    restarts = list(lives.values())[1:] or list(lives.values())

    def mean(*names: str) -> float:
        return fmean(sum(life.get(name, 0.0) for name in names) for life in restarts)

    stall = found.seconds["save"] / found.saves if found.saves else None
    changed = replace(
        scenario,
        detect=mean("idle") if len(lives) > 1 else scenario.detect,
        start=mean("start", "compile", "peers"),
        spare_start=min(scenario.spare_start, mean("start", "compile", "peers")),
    )
    if scenario.local is not None:
        local = scenario.local if stall is None else replace(scenario.local, stall=stall)
        restore = mean("restore") if len(lives) > 1 else local.restore
        changed = replace(changed, local=replace(local, restore=restore))
    return changed


class _Run:
    """One simulated run."""

    def __init__(self, scenario: Scenario, draw: random.Random) -> None:
        self.scenario, self.draw = scenario, draw
        self.now, self.failures = 0.0, 0
        names = ("step", "save", "rolled_back", "detect", "hosts", "start", "restore")
        self.seconds = dict.fromkeys(names, 0.0)
        self._tiers = [(tier, max(tier.interval, tier.write)) for tier, _ in scenario.tiers()]
        self._slowdown = 1 + sum(tier.stall / interval for tier, interval in self._tiers)
        # The training time that each tier has saved; the first has the most.
        self._saved = [0.0] * len(self._tiers)
        self._spares = scenario.spares
        self._repaired: list[float] = []  # when hosts come back, a heap

    def go(self, horizon: float) -> None:
        """Recovers and trains, from failure to failure, until the horizon."""
        kinds, rate = self.scenario.kinds, self.scenario.failures_per_second
        weights = [kind.weight for kind in kinds]
        recovery: list[tuple[str, float]] = []
        while True:
            # Every failure takes as many draws, so that all scenarios meet the same failures.
            failure = self.now + (self.draw.expovariate(rate) if rate else math.inf)
            (kind,) = self.draw.choices(kinds, weights)
            is_local_lost = self.draw.random() < self.scenario.durable_share
            end = min(failure, horizon)
            for name, seconds in recovery:
                self._spend(name, min(seconds, end - self.now))
            self._train(end - self.now)
            if failure >= horizon:
                return
            self.failures += 1
            self._roll_back(is_local_lost)
            recovery = self._recovery(kind, is_local_lost)

    def _train(self, wall: float) -> None:
        """Trains for some time, and saves at multiples of each tier's interval."""
        begin = self.seconds["step"]
        for number, (tier, interval) in enumerate(self._tiers):
            written = begin + max(0.0, wall - tier.write) / self._slowdown
            last = math.floor(written / interval) * interval
            self._saved[number] = max(self._saved[number], last)
        self._spend("step", wall / self._slowdown)
        self._spend("save", wall - wall / self._slowdown)

    def _roll_back(self, is_local_lost: bool) -> None:
        """Goes back to the newest save that is left."""
        self._saved[0] = self._saved[-1] if is_local_lost else max(self._saved)
        lost = self.seconds["step"] - self._saved[0]
        self.seconds["step"] -= lost
        self.seconds["rolled_back"] += lost

    def _recovery(self, kind: FailureKind, is_local_lost: bool) -> list[tuple[str, float]]:
        """Returns the stages until training continues. A warm spare takes over if one is left."""
        scenario = self.scenario
        while self._repaired and self._repaired[0] <= self.now:
            heapq.heappop(self._repaired)
            self._spares += 1
        tier = self._tiers[-1 if is_local_lost else 0][0]
        stages = [("detect", scenario.detect_hang if kind.hangs else scenario.detect)]
        if self._spares:
            self._spares -= 1
            back = scenario.repair if kind.loses_host else scenario.start
            heapq.heappush(self._repaired, self.now + back)
            stages += [("start", scenario.spare_start)]
        else:
            stages += [("hosts", scenario.replacement if kind.loses_host else 0.0)]
            stages += [("start", scenario.start)]
        return [*stages, ("restore", tier.restore)]

    def _spend(self, name: str, seconds: float) -> None:
        self.seconds[name] += seconds
        self.now += seconds


def _mtbfs(scenario: Scenario) -> list[tuple[Tier, float]]:
    """Returns each tier with the mean seconds between failures that need it."""
    rate = scenario.failures_per_second
    return [
        (tier, 1 / (rate * share) if rate * share else math.inf) for tier, share in scenario.tiers()
    ]


def _clipped(tier: Tier, interval: float) -> float:
    """Returns an interval that is possible: at least the write time, at most a day."""
    return min(max(interval, tier.write, 1.0), _DAY)
