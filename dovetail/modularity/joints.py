"""Where the name of a feature may stand in files that are not its own, and why.

A path that ends with a slash is a folder. The tests fail for a mention that is not explained here,
and for an explanation that nothing needs.
"""

from __future__ import annotations

JOINTS: dict[str, dict[str, str]] = {
    "accumulate": {
        "learner/": "a way to produce gradients, which every learner can be given",
        "module/mapping.py": "itertools.accumulate",
        "targets/fitting.py": "how much memory a machine has decides on micro-batches",
        "plan/candidates.py": "one of the ways to take less memory that a search may choose",
    },
    "bf16": {
        "runtime/safetensors.py": "the name of a number type in a file format",
        "kernels/attention/mosaic.py": "JAX's name for how products are computed, told to a kernel",
    },
    "capacity": {
        "layers/moe/": "a way to dispatch tokens, in the folder of experts, with which it goes",
    },
    "ema": {
        "learner/": "an average that every learner can keep; the feature sets it",
        "targets/layout.py": "averages are a part of the state that is laid out",
        "runtime/checkpointer.py": "a checkpoint may hold an average, which is read for evaluation",
    },
    "fp8": {
        "hardware/": "the rates of chips by precision",
        "runtime/safetensors.py": "the names of number types in a file format",
    },
    "int8": {
        "hardware/": "the rates of chips by precision",
    },
    "moe": {
        "targets/fitting.py": "the mesh axis of that name",
        "plan/": "the mesh axis and the logical axis of that name",
        "parallel/": "a mesh axis and a logical axis are called expert, once for all models",
    },
    "no-positions": {
        "layers/": "the default of attention that is told no positions",
    },
    "offload": {
        "plan/candidates.py": "part of another feature's name, the one below",
        "parallel/": "a policy of what waits for the backward pass, which every stack can be given",
    },
    "offload-optimizer": {
        "plan/candidates.py": "one of the ways to take less memory that a search may choose",
    },
    "optimizer": {
        "cli/": "the part of a training state of that name",
        "plan/": "the part of a training state of that name, and of a device's memory",
        "targets/layout.py": "the part of a training state of that name",
        "learner/": "every learner has an optimizer; the feature chooses one by name",
    },
    "pipeline": {
        "plan/": "the mesh axis of that name",
        "learner/": "a way to produce gradients, which every learner can be given",
        "parallel/": "the mesh axis of that name",
    },
    "plain-feed-forward": {
        "layers/feed_forward/plain.py": "a part of its own, which families use, too",
    },
    "pre-norm": {
        "layers/": "the default of every block",
    },
    "remat": {
        "layers/stack/": "every stack has a policy of what it keeps; the feature chooses it",
        "parallel/": "the policies and their interface",
        "targets/fitting.py": "how much memory a machine has decides on what is kept",
        "plan/candidates.py": "one of the ways to take less memory that a search may choose",
    },
    "rms-norm": {
        "layers/": "the default norm of all parts",
    },
    "router-z-loss": {
        "layers/moe/": "a loss of routers, in the folder of experts, with which it goes",
    },
    "schedule": {
        "learner/": "every learner has a schedule; the feature chooses one by name",
    },
    "sigmoid": {
        "layers/": "the function of that name, as an activation and as a score of experts",
    },
    "sinks": {
        "kernels/attention/": "its kernel: one term more in the softmax of all attention kernels",
        "layers/attention/scores.py": "how a kernel is told of it",
    },
    "sliding-window": {
        "kernels/attention/": "a mask, which kernels can question; the feature sets it",
    },
    "soft-cap": {
        "kernels/": "its kernel: a map of scores that all kernels take",
    },
    "z-loss": {
        "kernels/cross_entropy/": "its kernel: a term of the fused loss",
        "layers/loss/next_token.py": "the setting of that kernel",
        "layers/moe/": "the loss of routers, by the same words",
    },
}
