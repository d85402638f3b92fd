"""QK-norm: `--with qk-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "qk-norm",
    kind="attention",
    files=("layers/linear/normed.py", "models/head_norms.py"),
    needs={
        "dovetail.layers:Attention": "there are no keys of each head to normalise (keys that are "
        "read from a latent vector are normalised there)"
    },
    excludes={"dovetail.layers.linear.normed:NormedLinear": "once is enough"},
)
def normed_queries_and_keys(config: Any) -> Any:
    """Normalises the queries and keys of each head (https://arxiv.org/abs/2302.05442)."""
    from dovetail.layers import Attention
    from dovetail.layers.linear.normed import NormedLinear

    def normed(old: Any) -> Any:
        width = old.head_width or config.model.width // old.num_heads
        query, key = (NormedLinear.Config(linear=m, group=width) for m in (old.query, old.key))
        return old.set(query=query, key=key)

    return replace(config, Attention, normed)
