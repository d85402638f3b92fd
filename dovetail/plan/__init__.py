"""Plans: will it fit, how fast is it, what does it cost? With the real compilers, and no device."""

from dovetail.plan.analytic import Choice, estimate
from dovetail.plan.cache import ProgramCache
from dovetail.plan.candidates import Candidate, candidate_of, candidates
from dovetail.plan.compiled import Compiled, compile_step, read_plan
from dovetail.plan.constants import FITTED, Constants
from dovetail.plan.devices import missing_compiler
from dovetail.plan.plan import Exchange, Memory, Plan
from dovetail.plan.planner import Planner
from dovetail.plan.rule_file import rule_text
from dovetail.plan.search import Ranked, Search, rank, remedies, search
from dovetail.plan.survey import ORDERS, Row, Survey
from dovetail.plan.timing import Timing
from dovetail.plan.verify import Ratios, Verified, verify
from dovetail.plan.workload import Workload, workload

__all__ = [
    "FITTED",
    "ORDERS",
    "Candidate",
    "Choice",
    "Compiled",
    "Constants",
    "Exchange",
    "Memory",
    "Plan",
    "Planner",
    "ProgramCache",
    "Ranked",
    "Ratios",
    "Row",
    "Search",
    "Survey",
    "Timing",
    "Verified",
    "Workload",
    "candidate_of",
    "candidates",
    "compile_step",
    "estimate",
    "missing_compiler",
    "rank",
    "read_plan",
    "remedies",
    "rule_text",
    "search",
    "verify",
    "workload",
]
