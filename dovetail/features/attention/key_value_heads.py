"""Key-value heads: shared by groups of query heads, or read from a latent vector."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "grouped-query",
    needs={"dovetail.layers:Attention": "there are no key-value heads to share"},
)
def grouped_query(config: Any, num_kv_heads: int | None = None) -> Any:
    """Grouped-query attention: groups of query heads share a key-value head.

    By default a quarter of the query heads, or the next smaller divisor
    (https://arxiv.org/abs/2305.13245).
    """
    from dovetail.layers import Attention

    def grouped(old: Any) -> Any:
        most = min(max(1, old.num_heads // 4), old.num_kv_heads or old.num_heads)
        divisors = [count for count in range(1, most + 1) if old.num_heads % count == 0]
        return old.set(num_kv_heads=max(divisors) if num_kv_heads is None else num_kv_heads)

    return replace(config, Attention, grouped)


@feature(
    "multi-query",
    needs={"dovetail.layers:Attention": "there are no key-value heads to share"},
)
def multi_query(config: Any) -> Any:
    """Multi-query attention: all query heads share one key-value head.

    https://arxiv.org/abs/1911.02150
    """
    from dovetail.layers import Attention

    return select(config, Attention).set(num_kv_heads=1)


@feature(
    "latent",
    files=("layers/attention/latent.py",),
    needs={"dovetail.layers:Attention": "there are no keys and values to compress"},
)
def multi_head_latent_attention(config: Any) -> Any:
    """Multi-head latent attention (MLA): keys and values are projected from a latent vector.

    The latent vector is four heads wide (DeepSeek-V2, https://arxiv.org/abs/2405.04434). The key
    projection becomes the down-projection and the value projection the up-projection, so their
    biases and adapters stay. The latent vector is normalized, so QK-norm is removed.
    """
    from dovetail.layers import Attention
    from dovetail.layers.attention.latent import LatentAttention

    def with_latent(old: Any) -> Any:
        head = old.head_width or config.model.width // old.num_heads
        rotated = head // 4 * 2  # half of a head, rounded to even; the query keeps its shape
        widths = {"plain_width": head - rotated, "rotated_width": rotated, "value_width": head}
        maps = {"query": _bare(old.query), "latent": _bare(old.key), "expand": _bare(old.value)}
        new = LatentAttention.Config(latent_width=4 * head, **widths, **maps)
        return replace(old, Attention, new)

    return replace(config, Attention, with_latent)


def _bare(linear: Any) -> Any:
    """Returns a linear layer without an output norm: a norm per head does not fit the latent."""
    from dovetail.layers import HasOutputNorm

    return linear.without_norm() if isinstance(linear, HasOutputNorm) else linear
