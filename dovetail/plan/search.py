"""Searching: arithmetic ranks all candidates, and the compiler verifies the best few.

Nothing is proposed that was not compiled, where the machine can be compiled for at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dovetail.plan.candidates import Candidate, candidate_of, candidates
from dovetail.plan.plan import Plan
from dovetail.plan.planner import Planner

VERIFIED = 3
# A search that the compiler refuses so often goes by figures that are not worth much.
_MOST_REFUSED = 5
# Of plans whose time differs by less, the one with more room is the better.
_ALIKE = 0.01


class Ranked(NamedTuple):
    """A candidate, and what is known of it."""

    candidate: Candidate
    plan: Plan


@dataclass(frozen=True)
class Search:
    """What a search has found.

    Attributes:
        considered: how many candidates were ranked.
        rule: what the target's rule chose, planned the same way as the best.
        verified: the best, in the order of their time; those that do not fit stand last.
    """

    considered: int
    rule: Plan
    verified: tuple[Ranked, ...]

    @property
    def is_rule_best(self) -> bool:
        """Says whether nothing was found that is better than what the rule chose."""
        return self.best is not None and self.best.plan is self.rule

    @property
    def best(self) -> Ranked | None:
        """The fastest that fits, if any does."""
        return next((each for each in self.verified if each.plan.fits), None)


def rank(planner: Planner, found: Iterable[Candidate] | None = None) -> list[Ranked]:
    """Returns all candidates by arithmetic, the fastest that fits first."""
    chosen = candidates(planner.work(), planner.config, planner.machine) if found is None else found
    ranked = [Ranked(each, planner.rough(each)) for each in chosen]
    return sorted(ranked, key=_order)


def search(planner: Planner, verified: int = VERIFIED) -> Search:
    """Finds the fastest way to run an experiment on a machine."""
    planner.tell("ranking")
    ranked = rank(planner)
    if not planner.obstacle:
        planner.tell("compiling what the rule chose")
    rule = planner.judged()
    tried = _verified(planner, _different(_fitting(ranked)), verified)
    # The rule's own choice is a candidate like others: what is proposed is never behind it.
    tried.append(Ranked(candidate_of(planner.config, planner.machine), rule))
    return Search(len(ranked), rule, tuple(sorted(tried, key=_order)))


def remedies(planner: Planner, most: int = 3) -> list[Ranked]:
    """Returns the nearest changes that fit, each compiled where that can be done.

    First those of one thing alone: what is kept, the micro-batches, the mesh, the optimizer's
    memory. Where none is enough, the best of all.
    """
    now = candidate_of(planner.config, planner.machine)
    everything = list(candidates(planner.work(), planner.config, planner.machine))
    found: list[Ranked] = []
    for field in ("keep", "microbatches", "mesh", "offloads_optimizer"):
        fitting = _fitting(rank(planner, _changed(now, field, everything)))
        found += _fitting(_verified(planner, fitting, 1))
        if len(found) == most:
            break
    if not found:
        fitting = _different(_fitting(rank(planner, everything)))
        found = _fitting(_verified(planner, fitting, 1))
    return sorted(found, key=_order)


def _verified(planner: Planner, ranked: Sequence[Ranked], wanted: int) -> list[Ranked]:
    """Compiles the fastest until enough of them fit, and returns all that were tried.

    What the compiler refuses says how much more it wants than arithmetic does; candidates that
    would not have as much to spare are passed over then.
    """
    tried: list[Ranked] = []
    margin = 1.0
    for candidate, rough in ranked:
        fit = len(_fitting(tried))
        if fit == wanted or len(tried) - fit == _MOST_REFUSED:
            break
        if rough.memory.total * margin > rough.memory.limit:
            continue
        if not planner.obstacle:
            planner.tell(f"compiling {len(tried) + 1}: {candidate}")
        plan = planner.judged(candidate)
        tried.append(Ranked(candidate, plan))
        if not plan.fits:
            margin = max(margin, plan.memory.total / rough.memory.total)
    return tried


def _changed(now: Candidate, field: str, others: Sequence[Candidate]) -> list[Candidate]:
    """Returns what differs from a candidate in one thing, which some other has."""
    values = dict.fromkeys(getattr(other, field) for other in others)
    changed = [replace(now, **{field: value}) for value in values if value != getattr(now, field)]
    possible = {replace(other, keep="") for other in others}
    return [each for each in changed if replace(each, keep="") in possible]


def _fitting(ranked: Sequence[Ranked]) -> list[Ranked]:
    return [each for each in ranked if each.plan.fits]


def _order(each: Ranked) -> tuple[bool, float, float]:
    return not each.plan.fits, each.plan.step_s, each.plan.memory.total


def _different(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Leaves out what is the same as one before it but for a little time."""
    found: list[Ranked] = []
    for each in ranked:
        alike = [
            other
            for other in found
            if other.candidate.keep == each.candidate.keep
            and other.candidate.microbatches == each.candidate.microbatches
            and abs(other.plan.step_s - each.plan.step_s) < _ALIKE * each.plan.step_s
        ]
        if not alike:
            found.append(each)
    return found
