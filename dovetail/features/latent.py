"""Latent attention: `--with latent`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "latent",
    kind="attention",
    files=("layers/attention/latent.py",),
    needs={"dovetail.layers:Attention": "there are no keys and values to compress"},
)
def latent_attention(config: Any) -> Any:
    """Keys and values are read from a vector of four heads' width (https://arxiv.org/abs/2405.04434).

    The map that made keys makes that vector, and the one that made values reads it, with the biases
    and adapters that they have. That vector is normalised, so heads are no more (QK-norm goes).
    """
    from dovetail.layers import Attention
    from dovetail.layers.attention.latent import LatentAttention

    def latent(old: Any) -> Any:
        head = old.head_width or config.model.width // old.num_heads
        rotated = head // 4 * 2  # half of a head, and even; the query keeps its shape
        widths = {"plain_width": head - rotated, "rotated_width": rotated, "value_width": head}
        maps = {"query": _plain(old.query), "latent": _plain(old.key), "expand": _plain(old.value)}
        new = LatentAttention.Config(latent_width=4 * head, **widths, **maps)
        return replace(old, Attention, new)

    return replace(config, Attention, latent)


def _plain(linear: Any) -> Any:
    """Returns a linear map without the norm on its result: a key's norm has no heads to go to."""
    from dovetail.layers import NormsOutput

    return linear.without_norm() if isinstance(linear, NormsOutput) else linear
