"""Mixtures of parallelisms: a training step of a small Llama on a mesh of devices.

Sizes are chosen so that everything divides, kernels are taken, and no array can be taken for
another one by its shape. The number of layers alone has a factor of three, on every stage of a
pipeline too: so an array whose size has one holds several layers' parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail.config import apply_modifier, apply_overrides
from dovetail.experiments import find_experiment
from dovetail.kernels import clear_choices
from dovetail.models.llama import llama
from dovetail.parallel import MeshLayout, SaveNothing
from dovetail.trainer import Program

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY = 12, 256, 16, 8, 128, 640, 1280
SEQUENCE, BATCH, EXPERTS = 512, 64, 16


_STACK = "model.decoder.stack"
_COMMON = {"model.width": WIDTH, "model.vocab_size": VOCABULARY}
# The tiny forms of other kinds of model, in sizes of the same sort.
TINY: dict[str, dict[str, Any]] = {
    # Recurrent layers, and one of attention.
    "tiny-hybrid": {
        f"{_STACK}.layers.0.num_layers": LAYERS,
        f"{_STACK}.layers.0.layer.attention.num_heads": 16,
        f"{_STACK}.layers.1.layer.attention.num_heads": 4,
        f"{_STACK}.layers.1.layer.attention.num_kv_heads": 4,
    },
    # Latent attention in all layers, and experts in all but the first.
    "deepseek-v3": {
        **{
            f"{_STACK}.layers.{index}.layer.attention.{name}": value
            for index in range(2)
            for name, value in {
                "num_heads": 8,
                "query.rank": 128,
                "latent_width": 128,
                "plain_width": 128,
                "rotated_width": 128,
                "value_width": 128,
            }.items()
        },
        f"{_STACK}.layers.0.layer.feed_forward.hidden": HIDDEN,
        f"{_STACK}.layers.1.num_layers": LAYERS,
        f"{_STACK}.layers.1.layer.feed_forward.top_k": 2,
        f"{_STACK}.layers.1.layer.feed_forward.expert.hidden": HIDDEN,
        f"{_STACK}.layers.1.layer.feed_forward.shared.hidden": HIDDEN,
    },
}


class Mixture(NamedTuple):
    """A mesh, and what else a config says for it.

    Attributes:
        mesh: the sizes of its axes.
        modifiers: as with `--with`.
        prefer: implementations by op.
        gradients: the schedule of a pipeline; None for plain gradients.
        tiny: the experiment whose tiny form it is; empty for the Llama.
        sequence: the tokens of a row.
    """

    mesh: dict[str, Any]
    modifiers: tuple[str, ...] = ()
    prefer: dict[str, str] = {}  # read only
    gradients: Any = None
    tiny: str = ""
    sequence: int = SEQUENCE

    def program(self, devices: Sequence[Any]) -> Program:
        """Returns the step, as a trainer would run it on these devices."""
        clear_choices()
        config = _tiny(self.tiny) if self.tiny else _llama()
        config.input.sequence_length, config.input.batch_size = self.sequence, BATCH
        for modifier in ("bf16", "optimizer:name=adamw", *self.modifiers):
            config = apply_modifier(config, modifier)
        config.mesh = MeshLayout.Config(**({"fsdp": 1} | self.mesh))
        config.kernels.prefer = self.prefer
        if self.gradients is not None:
            config.learner.gradients = self.gradients.clone()
        program: Program = config.build().program(tuple(devices))
        return program


def _llama() -> Any:
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
    config.model.decoder.stack.remat = SaveNothing.Config()
    return config


def _tiny(name: str) -> Any:
    sizes = [f"{path}={value}" for path, value in (_COMMON | TINY[name]).items()]
    config = apply_overrides(find_experiment(name).tiny(), sizes)
    for stack in config.model.decoder.stack.layers:
        stack.remat = SaveNothing.Config()
    return config
