"""Plans: memory, step time and cost of a training step, from real compilers without devices."""

from dovetail.plan.analytic import estimate_plan
from dovetail.plan.candidates import REMAT_POLICIES, Candidate, candidates, configured_candidate
from dovetail.plan.comparison import SORT_KEYS, ComparisonRow, TargetComparison
from dovetail.plan.constants import FITTED_CONSTANTS, RooflineConstants
from dovetail.plan.plan import Plan
from dovetail.plan.planner import Planner
from dovetail.plan.program_cache import ProgramCache
from dovetail.plan.search import (
    RankedPlan,
    SearchResult,
    rank_candidates,
    remedies,
    rule_source,
    search,
)
from dovetail.plan.verification import (
    PlanVerification,
    VerificationHistory,
    run_planner,
    verify,
)
from dovetail.plan.workload import Workload, trace_workload

__all__ = [
    "FITTED_CONSTANTS",
    "REMAT_POLICIES",
    "SORT_KEYS",
    "Candidate",
    "ComparisonRow",
    "Plan",
    "PlanVerification",
    "Planner",
    "ProgramCache",
    "RankedPlan",
    "RooflineConstants",
    "SearchResult",
    "TargetComparison",
    "VerificationHistory",
    "Workload",
    "candidates",
    "configured_candidate",
    "estimate_plan",
    "rank_candidates",
    "remedies",
    "rule_source",
    "run_planner",
    "search",
    "trace_workload",
    "verify",
]
