"""A vision transformer from outside: patches of an image are tokens of a stack of the package."""

import jax
import jax.numpy as jnp

from dovetail.config import ConfigOf, config_for
from dovetail.kernels.attention import Full
from dovetail.layers import Attention, FeedForward, Stack, TokenContext, TransformerBlock
from dovetail.layers.interfaces import Layer
from dovetail.layers.norms import HasFinalNorm
from dovetail.module import Mean, parameter
from dovetail.parallel import constrain


def encoder(num_layers: int, num_heads: int, hidden: int) -> Stack.Config:
    block = TransformerBlock.Config(
        attention=Attention.Config(num_heads=num_heads, mask=config_for(Full)),
        feed_forward=FeedForward.Config(hidden=hidden),
    )
    return Stack.Config(num_layers=num_layers, layer=block)


class VisionTransformer(HasFinalNorm):
    """Embeds patches, runs a stack without a causal mask, and classifies the mean of its output."""

    class Config(HasFinalNorm.Config["VisionTransformer"]):
        width: int = 32
        image_size: int = 12
        patch_size: int = 3
        num_classes: int = 10
        stack: ConfigOf[Layer] = encoder(num_layers=2, num_heads=4, hidden=64)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.patch, self.side = config.patch_size, config.image_size // config.patch_size
        pixels, width = config.patch_size**2, config.width
        self.embed = parameter((pixels, width), (None, "embed"), fan_in=(0,), fan_out=(1,))
        self.positions = parameter((self.side**2, width), (None, "embed"), fan_in=(0,))
        shape = (width, config.num_classes)
        self.head = parameter(shape, ("embed", None), fan_in=(0,), fan_out=(1,))
        self.stack = config.stack.build(width=width)

    def predict(self, images: jax.Array) -> jax.Array:
        """Maps images [B, height, width] to logits [B, classes]."""
        side, patch = self.side, self.patch
        patches = images.reshape(-1, side, patch, side, patch).swapaxes(2, 3)
        x_BSE = patches.reshape(-1, side**2, patch**2) @ self.embed + self.positions
        x_BSE = constrain(x_BSE, "batch", "residual_sequence", "embed")
        positions_BS = jnp.broadcast_to(jnp.arange(side**2), x_BSE.shape[:2])
        context = TokenContext(positions_BS, jnp.ones_like(positions_BS))
        return self.norm(self.stack(x_BSE, context)).mean(axis=1) @ self.head

    def __call__(self, batch) -> None:
        log_probs = jax.nn.log_softmax(self.predict(batch.images))
        rows = jnp.arange(len(batch.labels))
        self.add_loss("cross_entropy", -log_probs[rows, batch.labels].sum(), len(rows))
        self.add_summary("accuracy", Mean((log_probs.argmax(-1) == batch.labels).sum(), len(rows)))
