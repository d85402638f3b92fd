"""Metrics writers; a trainer has any number of them (`Trainer.Config.writers`)."""

from dovetail.runtime.writers.background import BackgroundWriter
from dovetail.runtime.writers.base import Metrics, MetricsWriter
from dovetail.runtime.writers.json_lines import JsonLines, read_metrics
from dovetail.runtime.writers.openmetrics import OpenMetrics
from dovetail.runtime.writers.tensorboard import TensorBoard
from dovetail.runtime.writers.wandb import WandB

__all__ = [
    "BackgroundWriter",
    "JsonLines",
    "Metrics",
    "MetricsWriter",
    "OpenMetrics",
    "TensorBoard",
    "WandB",
    "read_metrics",
]
