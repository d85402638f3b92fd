"""Modules: object code in front, pure functions underneath."""

from dovetail.module.batch import (
    ArraySpec,
    Batch,
    BatchSpec,
    HostBatch,
    sequence_batch_spec,
)
from dovetail.module.context import current_path
from dovetail.module.functional import Outputs, functional, initialize, initialize_variables
from dovetail.module.grouped import (
    Grouped,
    GroupedError,
    Product,
    grouped,
    multiply,
    on_each_copy,
)
from dovetail.module.initializers import Constant, FanScaled, Initializer, Normal
from dovetail.module.mapping import (
    Interleave,
    Slot,
    Split,
    Step,
    Tensor,
    Transpose,
    Weight,
)
from dovetail.module.module import Module, repeated
from dovetail.module.outputs import Loss, Maximum, Mean, SideOutputs, Summary, merge_into
from dovetail.module.shared import Shared
from dovetail.module.specs import (
    ParameterSpec,
    Spec,
    VariableSpec,
    fold_in_path,
    parameter,
    variable,
)
from dovetail.module.transforms import (
    checkpoint,
    cond,
    evaluated,
    scan,
    shard_map,
    value_and_grad,
    vmap,
)
from dovetail.module.tree import modules, parameter_specs, variable_specs
from dovetail.module.weight_matching import match_weights

__all__ = [
    "ArraySpec",
    "Batch",
    "BatchSpec",
    "Constant",
    "FanScaled",
    "Grouped",
    "GroupedError",
    "HostBatch",
    "Initializer",
    "Interleave",
    "Loss",
    "Maximum",
    "Mean",
    "Module",
    "Normal",
    "Outputs",
    "ParameterSpec",
    "Product",
    "Shared",
    "SideOutputs",
    "Slot",
    "Spec",
    "Split",
    "Step",
    "Summary",
    "Tensor",
    "Transpose",
    "VariableSpec",
    "Weight",
    "checkpoint",
    "cond",
    "current_path",
    "evaluated",
    "fold_in_path",
    "functional",
    "grouped",
    "initialize",
    "initialize_variables",
    "match_weights",
    "merge_into",
    "modules",
    "multiply",
    "on_each_copy",
    "parameter",
    "parameter_specs",
    "repeated",
    "scan",
    "sequence_batch_spec",
    "shard_map",
    "value_and_grad",
    "variable",
    "variable_specs",
    "vmap",
]
