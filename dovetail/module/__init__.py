"""Modules: object code in front, pure functions underneath."""

from dovetail.module.functional import Outputs, functional, initialize, initialize_variables
from dovetail.module.initializers import Constant, FanScaled, Initializer, Normal
from dovetail.module.module import Module, repeated
from dovetail.module.outputs import Loss, Maximum, Mean, SideOutputs, Summary
from dovetail.module.shared import Shared
from dovetail.module.specs import (
    ParameterSpec,
    Spec,
    VariableSpec,
    fold_in_path,
    parameter,
    variable,
)
from dovetail.module.transforms import checkpoint, cond, scan, shard_map, value_and_grad, vmap
from dovetail.module.tree import parameter_specs, variable_specs

__all__ = [
    "Constant",
    "FanScaled",
    "Initializer",
    "Loss",
    "Maximum",
    "Mean",
    "Module",
    "Normal",
    "Outputs",
    "ParameterSpec",
    "Shared",
    "SideOutputs",
    "Spec",
    "Summary",
    "VariableSpec",
    "checkpoint",
    "cond",
    "fold_in_path",
    "functional",
    "initialize",
    "initialize_variables",
    "parameter",
    "parameter_specs",
    "repeated",
    "scan",
    "shard_map",
    "value_and_grad",
    "variable",
    "variable_specs",
    "vmap",
]
