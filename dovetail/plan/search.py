"""The search: the analytic model ranks all candidates, and the compiler verifies the best few.

If the machine can be compiled for, nothing is proposed that was not compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dovetail.config import ConfigError, component_name
from dovetail.plan.candidates import Candidate, candidates, configured_candidate
from dovetail.plan.plan import Plan
from dovetail.plan.planner import Planner
from dovetail.targets import Machine

VERIFIED = 3
# After this many refusals the analytic memory is too inaccurate to continue.
_MAX_REFUSED = 5
# Times that differ by less than this fraction count as equal.
_SAME_TIME = 0.01


class RankedPlan(NamedTuple):
    """A candidate and its plan."""

    candidate: Candidate
    plan: Plan

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        chosen = {"mesh": self.candidate.sizes(), "modifiers": self.candidate.modifiers()}
        return {"candidate": chosen, "plan": self.plan.facts()}


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        considered: how many candidates were ranked.
        rule: the plan of the rule's choice, from the same source as the best.
        verified: the best plans by time; those that do not fit come last.
    """

    considered: int
    rule: Plan
    verified: tuple[RankedPlan, ...]

    @property
    def is_rule_best(self) -> bool:
        """Whether the rule's choice is the best."""
        return self.best is not None and self.best.plan is self.rule

    @property
    def best(self) -> RankedPlan | None:
        """The fastest plan that fits, if any does."""
        return next((each for each in self.verified if each.plan.fits), None)

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "considered": self.considered,
            "rule": self.rule.facts(),
            "best": None if self.best is None else self.best.facts(),
            "verified": [each.facts() for each in self.verified],
        }

    def report(self) -> str:
        """Returns the result as text, beside the rule's own choice."""
        from dovetail.plan.report import search_report

        return search_report(self)


def rank_candidates(planner: Planner, found: Iterable[Candidate] | None = None) -> list[RankedPlan]:
    """Returns candidates with analytic plans, the fastest that fits first."""
    if found is None:
        found = candidates(planner.workload(), planner.config, planner.machine)
    ranked = [RankedPlan(each, planner.analytic_plan(each)) for each in found]
    return sorted(ranked, key=_order)


def search(planner: Planner, verified: int = VERIFIED) -> SearchResult:
    """Finds the fastest way to run an experiment on a machine; it chooses the mesh, too."""
    if planner.is_mesh_set:
        raise ConfigError("--search chooses the mesh: leave mesh.* out, or leave out --search.")
    planner.on_progress("ranking")
    ranked = rank_candidates(planner)
    if not planner.compile_obstacle:
        planner.on_progress("compiling what the rule chose")
    rule = planner.plan_or_refusal()
    tried = _verified(planner, _distinct(_fitting(ranked)), verified)
    # The rule's choice is a candidate too, so the best is never slower.
    tried.append(RankedPlan(configured_candidate(planner.config, planner.machine), rule))
    return SearchResult(len(ranked), rule, tuple(sorted(tried, key=_order)))


def remedies(planner: Planner, most: int = 3) -> list[RankedPlan]:
    """Returns the smallest changes that fit, each compiled if possible.

    Single changes come first: remat, microbatches, mesh, optimizer offloading. If none is enough,
    it returns the best candidate of all.
    """
    now = configured_candidate(planner.config, planner.machine)
    everything = list(candidates(planner.workload(), planner.config, planner.machine))
    found: list[RankedPlan] = []
    for field in ("remat", "microbatches", "mesh", "offloads_optimizer"):
        fitting = _fitting(rank_candidates(planner, _changed(now, field, everything)))
        found += _fitting(_verified(planner, fitting, 1))
        if len(found) == most:
            break
    if not found:
        fitting = _distinct(_fitting(rank_candidates(planner, everything)))
        found = _fitting(_verified(planner, fitting, 1))
    return sorted(found, key=_order)


def rule_source(name: str, machine: Machine, candidate: Candidate) -> str:
    """Returns a candidate as the source of a target rule; with `--import`, it takes precedence.

    The rule is for any number of slices of this kind: `data` takes the remaining devices.
    """
    sizes = tuple({**candidate.sizes(), "data": -1}.items())
    function = re.sub(r"\W", "_", name)
    policy: list[str] = []
    if candidate.remat is not None:
        component: Any = type(candidate.remat).builds()
        module, _, class_name = component_name(component).partition(":")
        policy = [f"    from {module} import {class_name}"]
    return "\n".join(
        [
            f'"""Found by `dovetail plan {name} --target {machine.name} --search`."""',
            "",
            "from dovetail.targets import target_rule",
            "",
            "",
            f'@target_rule("{name}-on-{machine.kind}", "{machine.kind}")',
            f"def {function}(config, machine):",
            f'    """For every experiment on {machine.kind}: {candidate}."""',
            *policy,
            "    from dovetail.plan import Candidate",
            "",
            "    found = Candidate(",
            f"        mesh={sizes!r},",
            f"        remat={candidate.remat!r},",
            f"        microbatches={candidate.microbatches},",
            f"        offloads_optimizer={candidate.offloads_optimizer},",
            f"        keeps_gradients={candidate.keeps_gradients},",
            "    )",
            "    return found.apply(config)",
            "",
        ]
    )


def _verified(planner: Planner, ranked: Sequence[RankedPlan], wanted: int) -> list[RankedPlan]:
    """Compiles the fastest candidates until enough of them fit, and returns all that were tried.

    A refusal shows how far the analytic memory is too low. Candidates without that margin are
    skipped from then on.
    """
    tried: list[RankedPlan] = []
    margin = 1.0
    for candidate, analytic in ranked:
        fit = len(_fitting(tried))
        if fit == wanted or len(tried) - fit == _MAX_REFUSED:
            break
        if analytic.memory.total * margin > analytic.memory.limit:
            continue
        if not planner.compile_obstacle:
            planner.on_progress(f"compiling {len(tried) + 1}: {candidate}")
        plan = planner.plan_or_refusal(candidate)
        tried.append(RankedPlan(candidate, plan))
        if not plan.fits:
            margin = max(margin, plan.memory.total / analytic.memory.total)
    return tried


def _changed(now: Candidate, field: str, others: Sequence[Candidate]) -> list[Candidate]:
    """Returns variants of a candidate that differ in one field."""
    changed: list[Candidate] = []
    for other in others:
        each = replace(now, **{field: getattr(other, field)})
        if each != now and each not in changed:
            changed.append(each)
    possible = {replace(other, remat=None) for other in others}
    return [each for each in changed if replace(each, remat=None) in possible]


def _fitting(ranked: Sequence[RankedPlan]) -> list[RankedPlan]:
    return [each for each in ranked if each.plan.fits]


def _order(each: RankedPlan) -> tuple[bool, float, float]:
    return not each.plan.fits, each.plan.step_seconds, each.plan.memory.total


def _distinct(ranked: Sequence[RankedPlan]) -> list[RankedPlan]:
    """Drops plans with the remat, microbatches and time of an earlier one."""
    found: list[RankedPlan] = []
    for each in ranked:
        duplicates = [
            other
            for other in found
            if other.candidate.remat == each.candidate.remat
            and other.candidate.microbatches == each.candidate.microbatches
            and abs(other.plan.step_seconds / each.plan.step_seconds - 1) < _SAME_TIME
        ]
        if not duplicates:
            found.append(each)
    return found
