"""Multi-token prediction: further heads that look more than one token ahead, while training."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import ConfigOf
from dovetail.kernels.cross_entropy import cross_entropy
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Layer, Places, TokenMap, Vocabulary
from dovetail.layers.linear.linear import Linear
from dovetail.layers.loss.changed import ChangedLoss
from dovetail.layers.loss.next_token import Logits
from dovetail.layers.norms.last import EndsInNorm
from dovetail.layers.norms.rms import RMSNorm
from dovetail.layers.stack.transformer import TransformerBlock
from dovetail.module import Batch, Mean, Shared


class Ahead(EndsInNorm):
    """A head that is told one token more than the one before it, and predicts the next after it."""

    class Config(EndsInNorm.Config["Ahead"]):
        """The width is set by the parent."""

        stream_norm: ConfigOf[TokenMap] = RMSNorm.Config()
        token_norm: ConfigOf[TokenMap] = RMSNorm.Config()
        projection: ConfigOf[TokenMap] = Linear.Config()
        layer: ConfigOf[Layer] = TransformerBlock.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.width
        self.stream_norm = config.stream_norm.build(width=width)
        self.token_norm = config.token_norm.build(width=width)
        self.projection = config.projection.build(
            in_features=2 * width, out_features=width, out_axis="embed"
        )
        self.layer = config.layer.build(width=width)

    def __call__(self, x_BSE: jax.Array, token_BSE: jax.Array, places: Places) -> jax.Array:
        """Returns the stream of the next head, given the one before and a further token of each."""
        both = [self.stream_norm(x_BSE), self.token_norm(token_BSE)]
        return self.layer(self.projection(jnp.concatenate(both, axis=-1)), places)

    def add(
        self, logits: Logits, targets_BS: jax.Array, weights_BS: jax.Array, share: float
    ) -> None:
        """Adds the loss of what it predicts, which counts for a share."""
        x_BSE, weight_VE, bound = logits
        normed = self.norm(x_BSE)
        result = cross_entropy(normed, weight_VE, targets_BS, weights_BS, logit_map=bound)
        total = weights_BS.sum()
        self.add_loss("ahead", share * result.loss_sum, total)
        self.add_summary("ahead", Mean(result.nll_sum, total))


class MultiTokenLoss(ChangedLoss):
    """Another loss, and that of `depth` tokens more (DeepSeek-V3, arXiv 2412.19437, 2.2).

    The heads stand in a row: each reads the stream of the one before it and the embedding of the
    next token. They share embedding and output layer with the model. Only training runs them, so
    evaluation and decoding are those of the loss that is wrapped. No token is predicted from
    another segment, and each counts as much as its loss weight says.
    """

    class Config(ChangedLoss.Config):
        """How far to look, and how much all heads together count."""

        depth: int = 1
        weight: float = 0.3
        head: ConfigOf[Ahead] = Ahead.Config()
        embedding: ConfigOf[Vocabulary] = Shared.Config(path="decoder/embedding")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "depth")
        head = config.head.clone(width=config.width)
        self.heads = [head.build() for _ in range(config.depth)]
        self.embedding = config.embedding.build()
        self.share = config.weight / config.depth

    def __call__(self, logits: Logits, batch: Batch) -> None:
        """Adds the losses."""
        self.base(logits, batch)
        if not self.training:
            return
        batch, places = self.counted(batch), Places(batch.positions, batch.segment_ids)
        token_BSE, x_BSE = self.embedding(batch.tokens), logits.x_BSE
        for ahead, head in enumerate(self.heads, start=1):
            x_BSE = head(x_BSE, _shifted(token_BSE, ahead), places)
            is_same_BS = batch.segment_ids == _shifted(batch.segment_ids, ahead)
            weights_BS = _shifted(batch.loss_weights, ahead) * is_same_BS
            targets_BS = _shifted(batch.targets, ahead)
            head.add(logits._replace(x_BSE=x_BSE), targets_BS, weights_BS, self.share)


def _shifted(array: jax.Array, by: int) -> jax.Array:
    """Brings what stands `by` places later to each place; zeros (padding) come in at the end."""
    fill = [(0, 0), (0, by), *[(0, 0)] * (array.ndim - 2)]
    return jnp.pad(array, fill)[:, by:]
