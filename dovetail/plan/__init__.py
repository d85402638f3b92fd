"""Plans: will it fit, how fast is it, what does it cost? With the real compilers, and no device."""

from dovetail.plan.analytic import Choice, estimate
from dovetail.plan.cache import PlanCache
from dovetail.plan.candidates import Candidate, candidates
from dovetail.plan.compiled import compile_plan
from dovetail.plan.devices import missing_compiler
from dovetail.plan.plan import Exchange, Memory, Plan
from dovetail.plan.planner import Planner
from dovetail.plan.rule_file import rule_text
from dovetail.plan.search import Ranked, Search, rank, remedies, search
from dovetail.plan.timing import Timing
from dovetail.plan.workload import Workload, workload

__all__ = [
    "Candidate",
    "Choice",
    "Exchange",
    "Memory",
    "Plan",
    "PlanCache",
    "Planner",
    "Ranked",
    "Search",
    "Timing",
    "Workload",
    "candidates",
    "compile_plan",
    "estimate",
    "missing_compiler",
    "rank",
    "remedies",
    "rule_text",
    "search",
    "workload",
]
