"""Targets: machines by the names that people give them, and the rules that fit experiments to them.

Importing this room loads no JAX, so that `config list` and `--help` can name targets.
"""

from dovetail.targets.apply import Targeted, apply_target
from dovetail.targets.families import FAMILIES, Family
from dovetail.targets.fitting import Fit, apply_fit, fit_mesh
from dovetail.targets.layout import Laid, Layout, lay_out
from dovetail.targets.local import (
    device_here,
    difference_here,
    need_no_accelerator,
    prepare_devices,
)
from dovetail.targets.machine import Machine
from dovetail.targets.names import example_targets, parse_target
from dovetail.targets.registry import Rule, find_rule, target_rule, target_rules
from dovetail.targets.size import ExperimentSize, weigh
from dovetail.targets.virtual import share_one_cpu

__all__ = [
    "FAMILIES",
    "ExperimentSize",
    "Family",
    "Fit",
    "Laid",
    "Layout",
    "Machine",
    "Rule",
    "Targeted",
    "apply_fit",
    "apply_target",
    "device_here",
    "difference_here",
    "example_targets",
    "find_rule",
    "fit_mesh",
    "lay_out",
    "need_no_accelerator",
    "parse_target",
    "prepare_devices",
    "share_one_cpu",
    "target_rule",
    "target_rules",
    "weigh",
]
