"""Modules: written like object code, run as pure functions (`functional`)."""

from dovetail.module.batch import (
    ArraySpec,
    BatchSpec,
    HostBatch,
    TokenBatch,
    batch_items,
    batch_size,
    sequence_batch_spec,
    token_batch,
)
from dovetail.module.bound import BoundModule
from dovetail.module.context import current_path
from dovetail.module.functional import Outputs, functional, initialize, initialize_variables
from dovetail.module.initializers import ConstantInitializer, Initializer, Normal, VarianceScaling
from dovetail.module.jaxpr import walk_jaxpr
from dovetail.module.module import Module, Shared, repeated
from dovetail.module.ragged import (
    GroupedParameter,
    matmul_with,
    ragged_vmap,
    vmap_groups,
)
from dovetail.module.shard_map import shard_map
from dovetail.module.side_outputs import Loss, Maximum, Mean, merge_into
from dovetail.module.specs import (
    ParameterSpec,
    Spec,
    VariableSpec,
    parameter,
    variable,
)
from dovetail.module.transforms import (
    checkpoint,
    cond,
    run_in_eval_mode,
    scan,
    take_outputs,
    value_and_grad,
    vmap,
)
from dovetail.module.tree import (
    ParameterCounts,
    count_parameters,
    modules,
    parameter_specs,
    variable_specs,
)
from dovetail.module.weight_mapping import (
    ForeignTensor,
    Interleave,
    ParameterSlice,
    Split,
    Transpose,
    WeightRule,
    match_weights,
)

__all__ = [
    "ArraySpec",
    "BatchSpec",
    "BoundModule",
    "ConstantInitializer",
    "ForeignTensor",
    "GroupedParameter",
    "HostBatch",
    "Initializer",
    "Interleave",
    "Loss",
    "Maximum",
    "Mean",
    "Module",
    "Normal",
    "Outputs",
    "ParameterCounts",
    "ParameterSlice",
    "ParameterSpec",
    "Shared",
    "Spec",
    "Split",
    "TokenBatch",
    "Transpose",
    "VariableSpec",
    "VarianceScaling",
    "WeightRule",
    "batch_items",
    "batch_size",
    "checkpoint",
    "cond",
    "count_parameters",
    "current_path",
    "functional",
    "initialize",
    "initialize_variables",
    "match_weights",
    "matmul_with",
    "merge_into",
    "modules",
    "parameter",
    "parameter_specs",
    "ragged_vmap",
    "repeated",
    "run_in_eval_mode",
    "scan",
    "sequence_batch_spec",
    "shard_map",
    "take_outputs",
    "token_batch",
    "value_and_grad",
    "variable",
    "variable_specs",
    "vmap",
    "vmap_groups",
    "walk_jaxpr",
]
