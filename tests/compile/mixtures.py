"""Mixtures of parallelisms: a training step of a small Llama on a mesh of devices.

Sizes are chosen so that everything divides, kernels are taken, and no array can be taken for
another one by its shape. The number of layers alone has a factor of three, on every stage of a
pipeline too: so an array whose size has one holds several layers' parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.kernels import forget_choices
from dovetail.models.llama import llama
from dovetail.parallel import KeepNothing, MeshLayout
from dovetail.trainer import Program

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY = 12, 256, 16, 8, 128, 640, 1280
SEQUENCE, BATCH, EXPERTS = 512, 64, 16


class Mixture(NamedTuple):
    """A mesh, and what else a config says for it.

    Attributes:
        mesh: the sizes of its axes.
        modifiers: as with `--with`.
        prefer: implementations by op.
        gradients: the schedule of a pipeline; None for plain gradients.
    """

    mesh: dict[str, Any]
    modifiers: tuple[str, ...] = ()
    prefer: dict[str, str] = {}  # read only
    gradients: Any = None

    def program(self, devices: Sequence[Any]) -> Program:
        """Returns the step, as a trainer would run it on these devices."""
        forget_choices()
        config = find_experiment("tiny-lm").tiny()
        config.model = llama(
            width=WIDTH,
            num_layers=LAYERS,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            hidden=HIDDEN,
            vocab_size=VOCABULARY,
        )
        config.model.decoder.stack.layer.attention.head_width = HEAD
        config.model.decoder.stack.remat = KeepNothing.Config()
        config.input.sequence_length, config.input.batch_size = SEQUENCE, BATCH
        for modifier in ("bf16", "optimizer:name=adamw", *self.modifiers):
            config = apply_modifier(config, modifier)
        config.mesh = MeshLayout.Config(**({"fsdp": 1} | self.mesh))
        config.kernels.prefer = self.prefer
        if self.gradients is not None:
            config.learner.gradients = self.gradients.clone()
        program: Program = config.build().program(tuple(devices))
        return program
