"""Named, runnable experiments: a model, data and a learner, put together. One file a family."""

from dovetail.experiments.registry import Experiment, experiment, experiments, find_experiment

__all__ = ["Experiment", "experiment", "experiments", "find_experiment"]
