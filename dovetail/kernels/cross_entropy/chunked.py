"""Cross-entropy in chunks of the sequence, which computes loss and gradients in the same pass.

Logits are needed for the loss and again for its gradients. Autodiff keeps them all in between, or
computes them twice. But the loss is a sum that is only ever scaled afterwards, so a chunk's
gradients can be computed while its logits are there, and scaled by what comes from above later.

The sequence is split, not the batch: so a batch that is sharded over devices stays sharded.

B batch, S sequence, C sequence of one chunk, E embed, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy.op import CrossEntropy, cross_entropy_op
from dovetail.parallel import current_placement

# A chunk's logits take about this much on each device...
CHUNK_BYTES = 2**26
# ...but it has no fewer rows than this: the gradient of the weight is read and written for each.
CHUNK_ROWS = 512


class Plan(NamedTuple):
    """All that is known before any array: static, and so hashable."""

    z_loss: float
    chunks: int
    weight_dtype: str
    weights_dtype: str


class Gradients(NamedTuple):
    """What is kept for the backward pass: gradients, as if that of the loss were 1."""

    x_BSE: jax.Array
    weight_VE: jax.Array
    weights_BS: jax.Array


@cross_entropy_op.register("chunked", before="reference")
def chunked(
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
    *,
    z_loss: float,
    chunks: int | None = None,
) -> CrossEntropy:
    """Computes the loss chunk by chunk; see `cross_entropy` for the arguments.

    `chunks` says into how many the sequence is split; None means as many as memory asks for.
    """
    batch, sequence, _ = x_BSE.shape
    chunks = chunks or count_chunks(batch, sequence, weight_VE.shape[0])
    plan = Plan(z_loss, chunks, weight_VE.dtype.name, weights_BS.dtype.name)
    return _cross_entropy(plan, x_BSE, weight_VE, targets_BS, weights_BS)


def count_chunks(batch: int, sequence: int, vocabulary: int) -> int:
    """Returns into how many chunks to split a sequence, by the memory of a chunk's logits.

    A number that divides the sequence is taken where there is one within twice the number needed;
    otherwise the last chunk is filled up with tokens of weight 0.
    """
    placement = current_placement()
    devices = 1 if placement is None else placement.mesh.size
    rows = devices * max(CHUNK_ROWS, CHUNK_BYTES // (4 * vocabulary))
    wanted = min(sequence, math.ceil(batch * sequence / rows))
    for chunks in range(wanted, min(2 * wanted, sequence) + 1):
        if sequence % chunks == 0:
            return chunks
    return wanted


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropy(
    plan: Plan,
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
) -> CrossEntropy:
    """Computes the loss alone: what runs where nothing is differentiated."""

    def step(sums: CrossEntropy, chunk: Chunk) -> tuple[CrossEntropy, None]:
        logits_BCV = _logits(chunk.x_BCE, weight_VE)
        more, _, _ = _losses(plan, logits_BCV, chunk)
        return jax.tree.map(jnp.add, sums, more), None

    return jax.lax.scan(step, _no_sums(), _split(plan, x_BSE, targets_BS, weights_BS))[0]


def _forward(
    plan: Plan,
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
) -> tuple[CrossEntropy, Gradients]:
    """Computes the loss and its gradients."""
    vocabulary_V = jnp.arange(weight_VE.shape[0])

    def step(carry: Any, chunk: Chunk) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        sums, by_weight_VE = carry
        logits_BCV = _logits(chunk.x_BCE, weight_VE)
        more, log_sum_BC, loss_BC = _losses(plan, logits_BCV, chunk)
        factor_BC = chunk.weights_BC * (1 + 2 * plan.z_loss * log_sum_BC)
        by_logits_BCV = factor_BC[..., None] * jnp.exp(logits_BCV - log_sum_BC[..., None])
        is_target_BCV = vocabulary_V == chunk.targets_BC[..., None]
        by_logits_BCV -= jnp.where(is_target_BCV, chunk.weights_BC[..., None], 0)
        by_logits_BCV = by_logits_BCV.astype(jnp.result_type(chunk.x_BCE, weight_VE))
        by_x_BCE = _product("bcv,ve->bce", by_logits_BCV, weight_VE)
        by_weight_VE += _product("bcv,bce->ve", by_logits_BCV, chunk.x_BCE)
        sums = jax.tree.map(jnp.add, sums, more)
        return (sums, by_weight_VE), (by_x_BCE.astype(x_BSE.dtype), loss_BC)

    start = _no_sums(), jnp.zeros(weight_VE.shape, jnp.float32)
    chunks = _split(plan, x_BSE, targets_BS, weights_BS)
    (sums, by_weight_VE), (by_x, by_weights) = jax.lax.scan(step, start, chunks)
    length = x_BSE.shape[1]
    return sums, Gradients(_joined(by_x, length), by_weight_VE, _joined(by_weights, length))


def _backward(
    plan: Plan, kept: Gradients, gradient: CrossEntropy
) -> tuple[jax.Array, jax.Array, None, jax.Array]:
    """Scales the gradients. Statistics have none, so theirs is left out."""
    scale = gradient.loss_sum
    return (
        (scale * kept.x_BSE).astype(kept.x_BSE.dtype),
        (scale * kept.weight_VE).astype(plan.weight_dtype),
        None,
        (scale * kept.weights_BS).astype(plan.weights_dtype),
    )


_cross_entropy.defvjp(_forward, _backward)


class Chunk(NamedTuple):
    """A part of the sequence; all parts together have the chunks as an axis in front."""

    x_BCE: jax.Array
    targets_BC: jax.Array
    weights_BC: jax.Array


def _split(plan: Plan, x_BSE: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array) -> Chunk:
    """Splits the sequence, and fills it up with zeros where it does not divide."""
    sequence = x_BSE.shape[1]
    length = -(-sequence // plan.chunks)

    def split(array: jax.Array) -> jax.Array:
        missing = length * plan.chunks - sequence
        if missing:
            array = jnp.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])
        array = array.reshape(array.shape[0], plan.chunks, length, *array.shape[2:])
        return jnp.moveaxis(array, 1, 0)

    return Chunk(split(x_BSE), split(targets_BS), split(weights_BS.astype(jnp.float32)))


def _joined(array: jax.Array, length: int) -> jax.Array:
    """Undoes the splitting."""
    array = jnp.moveaxis(array, 0, 1)
    return array.reshape(array.shape[0], -1, *array.shape[3:])[:, :length]


def _losses(
    plan: Plan, logits_BCV: jax.Array, chunk: Chunk
) -> tuple[CrossEntropy, jax.Array, jax.Array]:
    """Returns the sums of a chunk, the log of each softmax's denominator, and each token's loss."""
    top_BC = logits_BCV.max(axis=-1)
    log_sum_BC = top_BC + jnp.log(jnp.exp(logits_BCV - top_BC[..., None]).sum(axis=-1))
    index_BC1 = chunk.targets_BC[..., None]
    at_target_BC = jnp.take_along_axis(logits_BCV, index_BC1, axis=-1, mode="clip")[..., 0]
    nll_BC = log_sum_BC - at_target_BC
    loss_BC = nll_BC + plan.z_loss * log_sum_BC**2
    sums = CrossEntropy(
        (chunk.weights_BC * loss_BC).sum(),
        (chunk.weights_BC * nll_BC).sum(),
        (chunk.weights_BC * (at_target_BC >= top_BC)).sum(),
    )
    return sums, log_sum_BC, loss_BC


def _logits(x_BCE: jax.Array, weight_VE: jax.Array) -> jax.Array:
    return _product("bce,ve->bcv", x_BCE, weight_VE)


def _product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _no_sums() -> CrossEntropy:
    return CrossEntropy(*(jnp.zeros((), jnp.float32) for _ in CrossEntropy._fields))
