"""A model family of another modality, from outside: sizes, tiny form, input and files of a ViT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail.config import Component
from dovetail.experiments import register_sizes
from dovetail.models import ModelFamily, register_family
from dovetail.models.hf import HFConfig, linear, norm
from dovetail.module import ArraySpec, Transpose, WeightRule
from tests.outside.vision_transformer import VisionTransformer, encoder

_LAYER, _BLOCK = "encoder.layers.{layer}", "stack/*"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LabelledImages:
    """Images [batch, height, width] and their labels [batch]."""

    images: Any
    labels: Any

    def items(self) -> dict[str, int]:
        return {"images": self.images.shape[0]}


class Bars(Component):
    """Images with a bright row, whose number is the label."""

    class Config(Component.Config["Bars"]):
        image_size: int = 12
        num_classes: int = 10
        batch_size: int = 64

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.batch_size, self.size = config.batch_size, config.image_size
        self.num_classes = min(config.num_classes, config.image_size)

    def spec(self) -> LabelledImages:
        rows, size = self.batch_size, self.size
        images = ArraySpec((rows, size, size), "float32", ("batch", None, None))
        return LabelledImages(images, ArraySpec((rows,), "int32", ("batch",)))

    def batch(self, step: int, rows: slice | None = None) -> LabelledImages:
        labels = (step + np.arange(self.batch_size, dtype=np.int32)) % self.num_classes
        images = np.repeat(np.eye(self.size, dtype=np.float32)[labels][..., None], self.size, 2)
        return LabelledImages(images[rows or slice(None)], labels[rows or slice(None)])


def from_hf(values: Mapping[str, Any]) -> VisionTransformer.Config:
    hf = HFConfig(values)
    return VisionTransformer.Config(
        width=hf["hidden_size"],
        image_size=hf["image_size"],
        patch_size=hf["patch_size"],
        num_classes=hf["num_labels"],
        stack=encoder(
            num_layers=hf["num_hidden_layers"],
            num_heads=hf["num_attention_heads"],
            hidden=hf["intermediate_size"],
        ),
    )


def to_hf(config: VisionTransformer.Config) -> dict[str, Any]:
    block: Any = config.stack.layer
    return {
        "hidden_size": config.width,
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_labels": config.num_classes,
        "num_hidden_layers": config.stack.num_layers,
        "num_attention_heads": block.attention.num_heads,
        "intermediate_size": block.feed_forward.hidden,
    }


def tiny() -> dict[str, Any]:
    return to_hf(VisionTransformer.Config())


def images(model: VisionTransformer.Config) -> Bars.Config:
    return Bars.Config(image_size=model.image_size, num_classes=model.num_classes)


FAMILY = register_family(
    ModelFamily(
        name="drawn-vit",
        model_type="drawn_vit",
        architecture="DrawnViTForImageClassification",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            WeightRule("embeddings.patch.weight", "embed", (Transpose(),)),
            WeightRule("embeddings.positions", "positions"),
            WeightRule("classifier.weight", "head", (Transpose(),)),
            norm("norm", "norm"),
            *linear(f"{_LAYER}.attention.query", f"{_BLOCK}/attention/query"),
            *linear(f"{_LAYER}.attention.key", f"{_BLOCK}/attention/key"),
            *linear(f"{_LAYER}.attention.value", f"{_BLOCK}/attention/value"),
            *linear(f"{_LAYER}.attention.output", f"{_BLOCK}/attention/output"),
            *linear(f"{_LAYER}.mlp.gate", f"{_BLOCK}/feed_forward/gate"),
            *linear(f"{_LAYER}.mlp.up", f"{_BLOCK}/feed_forward/up"),
            *linear(f"{_LAYER}.mlp.down", f"{_BLOCK}/feed_forward/down"),
            norm(f"{_LAYER}.norm1", f"{_BLOCK}/attention_residual/norm"),
            norm(f"{_LAYER}.norm2", f"{_BLOCK}/feed_forward_residual/norm"),
        ),
        tiny=tiny,
        input=images,
    )
)
SIZES = register_sizes(Path(__file__).parent / "sizes")
