"""Targets: named machines, and the rules that fit experiments to them.

Importing this subpackage loads no JAX, so that `config list` and `--help` can list targets.
"""

from dovetail.targets.apply import AppliedTarget, apply_target
from dovetail.targets.families import MACHINE_FAMILIES, MachineFamily
from dovetail.targets.fitting import MeshShape, choose_mesh, fit_experiment
from dovetail.targets.local_devices import (
    create_virtual_devices,
    default_to_cpu,
    local_device_kind,
    local_mismatch,
    set_virtual_device_flags,
)
from dovetail.targets.machine import Machine
from dovetail.targets.names import example_targets, family_facts, parse_target
from dovetail.targets.rule import TargetRule, find_rule, target_rule, target_rules
from dovetail.targets.sharding import (
    ArraySharding,
    ExperimentSharding,
    experiment_sharding,
    machine_program,
)
from dovetail.targets.size import ExperimentSize, config_size, experiment_size
from dovetail.targets.topology import (
    gpu_topology,
    missing_compiler,
    topology_devices,
    tpu_topology,
)

__all__ = [
    "MACHINE_FAMILIES",
    "AppliedTarget",
    "ArraySharding",
    "ExperimentSharding",
    "ExperimentSize",
    "Machine",
    "MachineFamily",
    "MeshShape",
    "TargetRule",
    "apply_target",
    "choose_mesh",
    "config_size",
    "create_virtual_devices",
    "default_to_cpu",
    "example_targets",
    "experiment_sharding",
    "experiment_size",
    "family_facts",
    "find_rule",
    "fit_experiment",
    "gpu_topology",
    "local_device_kind",
    "local_mismatch",
    "machine_program",
    "missing_compiler",
    "parse_target",
    "set_virtual_device_flags",
    "target_rule",
    "target_rules",
    "topology_devices",
    "tpu_topology",
]
