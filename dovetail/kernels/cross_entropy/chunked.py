"""Chunked cross-entropy: loss and gradients in one pass over chunks of the sequence.

The loss and its gradients both need the logits. Autodiff saves all of them in between, or computes
them twice. But the loss is a sum that is only scaled afterwards: so the forward pass computes the
gradients of a chunk while its logits are in memory, and the backward pass scales them.

Chunks split the sequence, not the batch, so a sharded batch stays sharded. Where the sequence is
sharded too, a chunk takes a slice of every shard.

B batch, S sequence, N tokens of a chunk, E embed, V vocabulary, Q shards of the sequence, R shards
of the batch.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy.op import CrossEntropy
from dovetail.kernels.dispatch import current_platform, implementation
from dovetail.kernels.score_maps import ScoreMap
from dovetail.kernels.sharded import indivisible, logical_shard_map, mesh_axes, num_shards
from dovetail.parallel import constrain, record_activation

T = TypeVar("T")

# Tokens of a chunk on each device. On a CPU fewer are slower (dw is read and written for each
# chunk), and so are more (logits leave the caches). Accelerators have more FLOPs per byte of
# bandwidth, so there it takes more tokens to hide that traffic.
CPU_ROWS = 512
ACCELERATOR_ROWS = 2048


class ChunkedPlan(NamedTuple):
    """The static arguments: hashable."""

    z_loss: float
    logit_map: ScoreMap | None
    chunks: int
    sequence_shards: int
    batch_shards: int
    weight_dtype: str
    weights_dtype: str


class UnitGradients(NamedTuple):
    """The residuals of the backward pass: gradients for a loss gradient of 1."""

    dx_BSE: jax.Array
    dw_VE: jax.Array
    dweights_BS: jax.Array


@implementation("chunked")
def chunked(
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
    *,
    z_loss: float,
    logit_map: ScoreMap | None = None,
    chunks: int | None = None,
) -> CrossEntropy:
    """Computes the loss chunk by chunk; see `cross_entropy` for the arguments.

    `chunks` is the number of chunks of the sequence; None means `count_chunks`.
    """
    batch, sequence, _ = x_BSE.shape
    chunks = chunks or count_chunks(batch, sequence)
    shards = _shards(sequence, "sequence"), _shards(batch, "batch")
    dtypes = weight_VE.dtype.name, weights_BS.dtype.name
    plan = ChunkedPlan(z_loss, logit_map, chunks, *shards, *dtypes)
    return _cross_entropy(plan, x_BSE, weight_VE, targets_BS, weights_BS)


def count_chunks(batch: int, sequence: int) -> int:
    """Returns into how many chunks to split a sequence.

    It is a divisor of the sequence if there is one within twice the number needed; otherwise the
    last chunk is padded with tokens of weight 0.
    """
    # Not all devices of the mesh: pipeline stages share no logits, each computes all.
    devices = num_shards("batch", "sequence", "vocab")
    rows = devices * (CPU_ROWS if current_platform() == "cpu" else ACCELERATOR_ROWS)
    wanted = min(sequence, math.ceil(batch * sequence / rows))
    for chunks in range(wanted, min(2 * wanted, sequence) + 1):
        if sequence % chunks == 0:
            return chunks
    return wanted


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropy(
    plan: ChunkedPlan,
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
) -> CrossEntropy:
    """Computes only the loss: runs where nothing is differentiated."""
    weight_VE = _gather_embed(weight_VE)

    def step(_: None, chunk: TokenChunk) -> tuple[None, TokenStats]:
        logits_NV = _logits(chunk.x_NE, weight_VE)
        if plan.logit_map is not None:
            logits_NV = plan.logit_map(logits_NV)
        return None, _token_stats(logits_NV, chunk.targets_N)

    _, stats = jax.lax.scan(step, None, _split(plan, x_BSE, targets_BS, weights_BS))
    return _sums(plan, _merge(plan, stats, targets_BS.shape), weights_BS)[0]


def _forward(
    plan: ChunkedPlan,
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
) -> tuple[CrossEntropy, UnitGradients]:
    """Computes the loss and its gradients."""
    weight_VE = _gather_embed(weight_VE)
    vocabulary_V = jnp.arange(weight_VE.shape[0])

    def step(
        dw_QRVE: jax.Array, chunk: TokenChunk
    ) -> tuple[jax.Array, tuple[TokenStats, jax.Array]]:
        logits_NV = _logits(chunk.x_NE, weight_VE)
        if plan.logit_map is not None:
            logits_NV, map_vjp = jax.vjp(plan.logit_map, logits_NV)
        stats = _token_stats(logits_NV, chunk.targets_N)
        probs_NV = jnp.exp(logits_NV - stats.lse[..., None])
        factor_N = chunk.weights_N * (1 + 2 * plan.z_loss * stats.lse)
        is_target_NV = vocabulary_V == chunk.targets_N[..., None]
        dlogits_NV = factor_N[..., None] * probs_NV
        dlogits_NV -= jnp.where(is_target_NV, chunk.weights_N[..., None], 0)
        if plan.logit_map is not None:
            (dlogits_NV,) = map_vjp(dlogits_NV)
        dlogits_NV = dlogits_NV.astype(jnp.result_type(chunk.x_NE, weight_VE))
        dx_NE = _matmul("nv,ve->ne", dlogits_NV, weight_VE).astype(x_BSE.dtype)
        dw_QRVE += _chunk_dw(plan, dlogits_NV, chunk.x_NE)
        return _constrain_partial_sums(dw_QRVE), (stats, dx_NE)

    shards = (plan.sequence_shards, plan.batch_shards)
    init_QRVE = _constrain_partial_sums(jnp.zeros((*shards, *weight_VE.shape), jnp.float32))
    chunks = _split(plan, x_BSE, targets_BS, weights_BS)
    dw_QRVE, (stats, dx) = jax.lax.scan(step, init_QRVE, chunks)
    stats, dx_BSE = _merge(plan, (stats, dx), targets_BS.shape)
    sums, loss_BS = _sums(plan, stats, weights_BS)
    return sums, UnitGradients(dx_BSE, _reduce_partial_sums(dw_QRVE), loss_BS)


def _backward(
    plan: ChunkedPlan, unit: UnitGradients, gradient: CrossEntropy
) -> tuple[jax.Array, jax.Array, None, jax.Array]:
    """Scales the gradients. Metrics have none, so theirs is ignored."""
    scale = gradient.loss_sum
    return (
        (scale * unit.dx_BSE).astype(unit.dx_BSE.dtype),
        (scale * unit.dw_VE).astype(plan.weight_dtype),
        None,
        (scale * unit.dweights_BS).astype(plan.weights_dtype),
    )


_cross_entropy.defvjp(_forward, _backward)


class TokenChunk(NamedTuple):
    """A chunk of the tokens; all chunks together have a leading axis."""

    x_NE: jax.Array
    targets_N: jax.Array
    weights_N: jax.Array


class TokenStats(NamedTuple):
    """The logsumexp, negative log-likelihood and accuracy of tokens; [N], or [B, S] merged."""

    lse: jax.Array
    nll: jax.Array
    is_correct: jax.Array


def _token_stats(logits_NV: jax.Array, targets_N: jax.Array) -> TokenStats:
    max_N = logits_NV.max(axis=-1)
    lse_N = max_N + jnp.log(jnp.exp(logits_NV - max_N[..., None]).sum(axis=-1))
    target_logit_N = _target_logits(logits_NV, targets_N[..., None])
    return TokenStats(lse_N, lse_N - target_logit_N, target_logit_N >= max_N)


def _target_logits(logits_NV: jax.Array, index_N1: jax.Array) -> jax.Array:
    """Returns the logit of each target."""
    if not mesh_axes("vocab"):
        return jnp.take_along_axis(logits_NV, index_N1, axis=-1, mode="clip")[..., 0]
    # A masked sum, which XLA can partition. A partitioned gather crashes the process inside a
    # shard_map (spmd_partitioner_util.cc:497, JAX 0.10.2).
    vocabulary_V = jnp.arange(logits_NV.shape[-1])
    is_target_NV = jnp.clip(index_N1, 0, logits_NV.shape[-1] - 1) == vocabulary_V
    return jnp.where(is_target_NV, logits_NV, 0).sum(axis=-1)


def _sums(
    plan: ChunkedPlan, stats: TokenStats, weights_BS: jax.Array
) -> tuple[CrossEntropy, jax.Array]:
    """Returns the sums over all tokens, and the loss of each token."""
    weights_BS = weights_BS.astype(jnp.float32)
    loss_BS = stats.nll + plan.z_loss * stats.lse**2
    values = (loss_BS, stats.nll, stats.is_correct)
    return CrossEntropy(*((weights_BS * value_BS).sum() for value_BS in values)), loss_BS


def _chunk_dw(plan: ChunkedPlan, dlogits_NV: jax.Array, x_NE: jax.Array) -> jax.Array:
    """Returns dw of a chunk as partial sums, one for each shard of sequence and batch.

    A sum over the shards would cost a reduction between devices in every chunk; so they are reduced
    once, after the last.
    """
    shards = (plan.sequence_shards, plan.batch_shards)
    if shards == (1, 1):
        return _matmul("nv,ne->ve", dlogits_NV, x_NE)[None, None]
    dlogits, x = (array.reshape(*shards, -1, *array.shape[1:]) for array in (dlogits_NV, x_NE))
    return _matmul("qrnv,qrne->qrve", dlogits, x)


def _reduce_partial_sums(dw_QRVE: jax.Array) -> jax.Array:
    """Reduce-scatters the partial sums of dw to the devices that hold each column.

    XLA would all-reduce all of dw, over the network between slices too, and slice it then.
    """
    token_axes, embed_axes = mesh_axes("sequence", "batch"), mesh_axes("embed")
    other_axes = tuple(axis for axis in token_axes if axis not in embed_axes)
    is_even = indivisible("columns", dw_QRVE.shape[-1], "embed") is None
    if dw_QRVE.shape[:2] != (num_shards("sequence"), num_shards("batch")) or not is_even:
        return constrain(dw_QRVE.sum(axis=(0, 1)), "vocab", "embed")
    if not set(embed_axes) <= set(token_axes) or set(embed_axes) & set(mesh_axes("vocab")):
        return constrain(dw_QRVE.sum(axis=(0, 1)), "vocab", "embed")

    def shard(dw_11VE: jax.Array) -> jax.Array:
        dw = dw_11VE[0, 0]
        if embed_axes:
            dw = jax.lax.psum_scatter(dw, embed_axes, scatter_dimension=1, tiled=True)
        return jax.lax.psum(dw, other_axes) if other_axes else dw

    in_axes = ("sequence", "batch", "vocab", None)
    dw_VE: jax.Array = logical_shard_map(shard, (in_axes,), ("vocab", "embed"))(dw_QRVE)
    return dw_VE


def _constrain_partial_sums(dw_QRVE: jax.Array) -> jax.Array:
    if dw_QRVE.shape[:2] == (1, 1):
        return dw_QRVE
    axes = [
        name if size > 1 else None
        for name, size in zip(("sequence", "batch"), dw_QRVE.shape, strict=False)
    ]
    return constrain(dw_QRVE, *axes, "vocab", None)


def _gather_embed(weight_VE: jax.Array) -> jax.Array:
    """All-gathers the weight along embed once, before the loop; the vocabulary stays sharded."""
    return constrain(weight_VE, "vocab", None)


def _logits(x_NE: jax.Array, weight_VE: jax.Array) -> jax.Array:
    logits_NV = _matmul("ne,ve->nv", x_NE, weight_VE)
    record_activation(logits_NV, "batch", "vocab")
    return logits_NV


def _split(
    plan: ChunkedPlan, x_BSE: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array
) -> TokenChunk:
    """Splits the sequence into chunks, padded with zeros where it does not divide.

    Within a chunk, tokens are ordered by shard of the sequence, then by shard of the batch: so the
    tokens of a device are contiguous, and none of them move.
    """
    batch, sequence = targets_BS.shape
    shards, local = plan.sequence_shards, sequence // plan.sequence_shards
    length = -(-local // plan.chunks)

    def split(array: jax.Array) -> jax.Array:
        rest = array.shape[2:]
        array = array.reshape(batch, shards, local, *rest)
        missing = length * plan.chunks - local
        if missing:
            array = jnp.pad(array, [(0, 0), (0, 0), (0, missing), *[(0, 0)] * len(rest)])
        array = array.reshape(batch, shards, plan.chunks, length, *rest)
        # From [B, Q, chunks, length] to [chunks, Q, B, length].
        array = jnp.moveaxis(array, (2, 1, 0), (0, 1, 2))
        return array.reshape(plan.chunks, -1, *rest)

    return TokenChunk(split(x_BSE), split(targets_BS), split(weights_BS.astype(jnp.float32)))


def _merge(plan: ChunkedPlan, tree: T, shape: tuple[int, ...]) -> T:
    """Undoes `_split` for every array in a tree; `shape` is (batch, sequence)."""
    batch, sequence = shape
    shards, local = plan.sequence_shards, sequence // plan.sequence_shards

    def merge(array: jax.Array) -> jax.Array:
        rest = array.shape[2:]
        array = array.reshape(plan.chunks, shards, batch, -1, *rest)
        array = jnp.moveaxis(array, (0, 1, 2), (2, 1, 0))
        array = array.reshape(batch, shards, -1, *rest)[:, :, :local]
        return array.reshape(batch, sequence, *rest)

    return jax.tree.map(merge, tree)


def _matmul(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _shards(size: int, axis: str) -> int:
    """Returns the number of shards of a logical axis; 1 if its size does not divide."""
    shards = num_shards(axis)
    return shards if size % shards == 0 else 1
