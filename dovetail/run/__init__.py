"""The run as an object: open, generate, evaluate, export, start from it, train."""

from dovetail.run.comparison import RunComparison, compare_runs
from dovetail.run.contents import open_input
from dovetail.run.dry_runs import DryRun, RemoteDryRun, dry_run, dry_run_elsewhere
from dovetail.run.initialization import InitFromRun, InitSubmoduleFromRun
from dovetail.run.listing import (
    RunSummary,
    delete_run,
    find_run,
    list_runs,
    listed_run,
    run_goodput,
    run_path,
    summarize_run,
)
from dovetail.run.naming import default_folder
from dovetail.run.run import GenerateOptions, Run, load_all_components
from dovetail.run.training import PreparedRun, check_profile, prepare_run, train_run
from dovetail.trainer import Interrupted

__all__ = [
    "DryRun",
    "GenerateOptions",
    "InitFromRun",
    "InitSubmoduleFromRun",
    "Interrupted",
    "PreparedRun",
    "RemoteDryRun",
    "Run",
    "RunComparison",
    "RunSummary",
    "check_profile",
    "compare_runs",
    "default_folder",
    "delete_run",
    "dry_run",
    "dry_run_elsewhere",
    "find_run",
    "list_runs",
    "listed_run",
    "load_all_components",
    "open_input",
    "prepare_run",
    "run_goodput",
    "run_path",
    "summarize_run",
    "train_run",
]
