"""Multi-token prediction (MTP): extra heads predict further tokens in training."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import ConfigOf
from dovetail.kernels.cross_entropy import cross_entropy
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.interfaces import Layer, TokenMap, Vocabulary
from dovetail.layers.linear.linear import Linear
from dovetail.layers.loss.base import Logits
from dovetail.layers.loss.wrappers import LossWrapper
from dovetail.layers.norms import HasFinalNorm, RMSNorm
from dovetail.layers.stack.blocks import TransformerBlock
from dovetail.module import Mean, Shared, TokenBatch


class MultiTokenHead(HasFinalNorm):
    """An MTP module: reads one token more than the head before it, and predicts the one after."""

    class Config(HasFinalNorm.Config["MultiTokenHead"]):
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

    def __call__(self, x_BSE: jax.Array, token_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Returns this head's residual stream, given the previous head's and the next token."""
        both = [self.stream_norm(x_BSE), self.token_norm(token_BSE)]
        return self.layer(self.projection(jnp.concatenate(both, axis=-1)), context)

    def add(
        self, logits: Logits, targets_BS: jax.Array, weights_BS: jax.Array, share: float
    ) -> None:
        """Adds the cross-entropy of its predictions, weighted by `share`."""
        x_BSE, weight_VE, logit_map = logits
        normed = self.norm(x_BSE)
        result = cross_entropy(normed, weight_VE, targets_BS, weights_BS, logit_map=logit_map)
        total = weights_BS.sum()
        self.add_loss("ahead", share * result.loss_sum, total)
        self.add_summary("ahead", Mean(result.nll_sum, total))


class MultiTokenLoss(LossWrapper):
    """MTP of DeepSeek-V3 with `depth` heads (https://arxiv.org/abs/2412.19437, section 2.2).

    The heads are sequential: each reads the residual stream of the previous one and the embedding
    of the next token. They share embedding and output head with the model. They run in training
    only. No token is predicted across segments, and loss weights apply.
    """

    class Config(LossWrapper.Config):
        depth: int = 1
        weight: float = 0.3
        head: ConfigOf[MultiTokenHead] = MultiTokenHead.Config()
        embedding: ConfigOf[Vocabulary] = Shared.Config(path="decoder/embedding")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "depth")
        head = config.head.clone(width=config.width)
        self.heads = [head.build() for _ in range(config.depth)]
        self.embedding = config.embedding.build()
        self.share = config.weight / config.depth

    def __call__(self, logits: Logits, batch: TokenBatch) -> None:
        """Adds the losses."""
        self.base(logits, batch)
        if not self.training:
            return
        batch, context = self.reweight(batch), TokenContext.of(batch)
        token_BSE, x_BSE = self.embedding(batch.tokens), logits.x_BSE
        for ahead, head in enumerate(self.heads, start=1):
            x_BSE = head(x_BSE, _shifted(token_BSE, ahead), context)
            is_same_BS = batch.segment_ids == _shifted(batch.segment_ids, ahead)
            weights_BS = _shifted(batch.loss_weights, ahead) * is_same_BS
            targets_BS = _shifted(batch.targets, ahead)
            head.add(logits._replace(x_BSE=x_BSE), targets_BS, weights_BS, self.share)


def _shifted(array: jax.Array, by: int) -> jax.Array:
    """Shifts the sequence to the left by `by` tokens; pads with zeros (segment 0) at the end."""
    fill = [(0, 0), (0, by), *[(0, 0)] * (array.ndim - 2)]
    return jnp.pad(array, fill)[:, by:]
