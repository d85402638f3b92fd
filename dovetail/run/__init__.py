"""The run as an object: open, generate, evaluate, export, start from it, train."""

from dovetail.run.comparison import RunComparison, compare_runs
from dovetail.run.initialization import InitFromRun, InitSubmoduleFromRun
from dovetail.run.listing import RunSummary, delete_run, find_run, list_runs
from dovetail.run.naming import default_folder
from dovetail.run.run import GenerateOptions, Run, load_all_components
from dovetail.run.training import Interrupted, train_run

__all__ = [
    "GenerateOptions",
    "InitFromRun",
    "InitSubmoduleFromRun",
    "Interrupted",
    "Run",
    "RunComparison",
    "RunSummary",
    "compare_runs",
    "default_folder",
    "delete_run",
    "find_run",
    "list_runs",
    "load_all_components",
    "train_run",
]
