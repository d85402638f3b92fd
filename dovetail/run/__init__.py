"""The run as an object: open, generate, evaluate, export, start from it, train."""

from dovetail.run.initialization import InitFromRun, InitSubmoduleFromRun
from dovetail.run.naming import default_folder
from dovetail.run.run import GenerateOptions, Run, load_all_components
from dovetail.run.training import Interrupted, train_run

__all__ = [
    "GenerateOptions",
    "InitFromRun",
    "InitSubmoduleFromRun",
    "Interrupted",
    "Run",
    "default_folder",
    "load_all_components",
    "train_run",
]
