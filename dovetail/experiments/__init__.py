"""Named, runnable experiments: a model, data and a learner."""

from dovetail.experiments.keys import ConfigKeys, cache_keys, cached_keys, did_you_mean_keys
from dovetail.experiments.registry import ExperimentEntry, experiment, experiments, find_experiment
from dovetail.experiments.size_files import PublishedSize, Recipe, register_sizes

__all__ = [
    "ConfigKeys",
    "ExperimentEntry",
    "PublishedSize",
    "Recipe",
    "cache_keys",
    "cached_keys",
    "did_you_mean_keys",
    "experiment",
    "experiments",
    "find_experiment",
    "register_sizes",
]
