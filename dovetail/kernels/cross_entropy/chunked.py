"""Cross-entropy in chunks of the sequence, which computes loss and gradients in the same pass.

Logits are needed for the loss and again for its gradients. Autodiff keeps them all in between, or
computes them twice. But the loss is a sum that is only ever scaled afterwards, so a chunk's
gradients can be computed while its logits are there, and scaled by what comes from above later.

The sequence is split, not the batch: so a batch that is sharded over devices stays sharded. Where
the sequence is sharded too, a chunk takes a piece of every shard's part of it.

B batch, S sequence, N tokens of a chunk, E embed, V vocabulary, Q shards of the sequence, R shards
of the batch.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy.op import CrossEntropy, cross_entropy_op
from dovetail.kernels.registry import current_platform
from dovetail.kernels.score_maps import ScoreMap
from dovetail.kernels.sharded import indivisible, mesh_axes, on_each_device, parts
from dovetail.parallel import constrain, note_activation

T = TypeVar("T")

# Tokens of a chunk on each device. On a CPU fewer is slower (the gradient of the weight is read and
# written for each chunk) and so is more (logits leave the caches). Accelerators multiply faster
# in proportion to their memory, so there it takes more tokens to hide that traffic.
CPU_ROWS = 512
ACCELERATOR_ROWS = 2048


class Plan(NamedTuple):
    """All that is known before any array: static, and so hashable."""

    z_loss: float
    logit_map: ScoreMap | None
    chunks: int
    sequence_shards: int
    batch_shards: int
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
    logit_map: ScoreMap | None = None,
    chunks: int | None = None,
) -> CrossEntropy:
    """Computes the loss chunk by chunk; see `cross_entropy` for the arguments.

    `chunks` says into how many the sequence is split; None means as many as memory asks for.
    """
    batch, sequence, _ = x_BSE.shape
    chunks = chunks or count_chunks(batch, sequence)
    shards = _sequence_shards(sequence), _batch_shards(batch)
    dtypes = weight_VE.dtype.name, weights_BS.dtype.name
    plan = Plan(z_loss, logit_map, chunks, *shards, *dtypes)
    return _cross_entropy(plan, x_BSE, weight_VE, targets_BS, weights_BS)


def count_chunks(batch: int, sequence: int) -> int:
    """Returns into how many chunks to split a sequence.

    A number that divides the sequence is taken where there is one within twice the number needed;
    otherwise the last chunk is filled up with tokens of weight 0.
    """
    # Not all devices of the mesh: the stages of a pipeline share no logits, each computes all.
    devices = parts("batch", "sequence", "vocab")
    rows = devices * (CPU_ROWS if current_platform() == "cpu" else ACCELERATOR_ROWS)
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
    weight_VE = _gathered(weight_VE)

    def step(nothing: None, chunk: Chunk) -> tuple[None, Judged]:
        logits_NV = _logits(chunk.x_NE, weight_VE)
        if plan.logit_map is not None:
            logits_NV = plan.logit_map(logits_NV)
        return None, _judged(logits_NV, chunk.targets_N)

    _, judged = jax.lax.scan(step, None, _split(plan, x_BSE, targets_BS, weights_BS))
    return _summed(plan, _joined(plan, judged, targets_BS.shape), weights_BS)[0]


def _forward(
    plan: Plan,
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
) -> tuple[CrossEntropy, Gradients]:
    """Computes the loss and its gradients."""
    weight_VE = _gathered(weight_VE)
    vocabulary_V = jnp.arange(weight_VE.shape[0])

    def step(total_QRVE: jax.Array, chunk: Chunk) -> tuple[jax.Array, tuple[Judged, jax.Array]]:
        logits_NV = _logits(chunk.x_NE, weight_VE)
        if plan.logit_map is not None:
            logits_NV, pull = jax.vjp(plan.logit_map, logits_NV)
        judged = _judged(logits_NV, chunk.targets_N)
        share_NV = jnp.exp(logits_NV - judged.log_sum[..., None])
        factor_N = chunk.weights_N * (1 + 2 * plan.z_loss * judged.log_sum)
        is_target_NV = vocabulary_V == chunk.targets_N[..., None]
        by_logits_NV = factor_N[..., None] * share_NV
        by_logits_NV -= jnp.where(is_target_NV, chunk.weights_N[..., None], 0)
        if plan.logit_map is not None:
            (by_logits_NV,) = pull(by_logits_NV)
        by_logits_NV = by_logits_NV.astype(jnp.result_type(chunk.x_NE, weight_VE))
        by_x_NE = _product("nv,ve->ne", by_logits_NV, weight_VE).astype(x_BSE.dtype)
        total_QRVE += _by_weight(plan, by_logits_NV, chunk.x_NE)
        return _kept_apart(total_QRVE), (judged, by_x_NE)

    shards = (plan.sequence_shards, plan.batch_shards)
    start_QRVE = _kept_apart(jnp.zeros((*shards, *weight_VE.shape), jnp.float32))
    chunks = _split(plan, x_BSE, targets_BS, weights_BS)
    total_QRVE, (judged, by_x) = jax.lax.scan(step, start_QRVE, chunks)
    judged, by_x_BSE = _joined(plan, (judged, by_x), targets_BS.shape)
    sums, loss_BS = _summed(plan, judged, weights_BS)
    by_weight_VE = _added_up(total_QRVE)
    return sums, Gradients(by_x_BSE, by_weight_VE, loss_BS)


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

    x_NE: jax.Array
    targets_N: jax.Array
    weights_N: jax.Array


class Judged(NamedTuple):
    """What the logits say of each token; [N], or [B, S] for the whole sequence."""

    log_sum: jax.Array
    nll: jax.Array
    is_correct: jax.Array


def _judged(logits_NV: jax.Array, targets_N: jax.Array) -> Judged:
    top_N = logits_NV.max(axis=-1)
    log_sum_N = top_N + jnp.log(jnp.exp(logits_NV - top_N[..., None]).sum(axis=-1))
    at_target_N = _picked(logits_NV, targets_N[..., None])
    return Judged(log_sum_N, log_sum_N - at_target_N, at_target_N >= top_N)


def _picked(logits_NV: jax.Array, index_N1: jax.Array) -> jax.Array:
    """Returns the logit of each target."""
    if not mesh_axes("vocab"):
        return jnp.take_along_axis(logits_NV, index_N1, axis=-1, mode="clip")[..., 0]
    # A sum over one term, which splits like any other sum. A gather that is split ends the process
    # inside a shard_map (spmd_partitioner_util.cc:497, JAX 0.10.2).
    vocabulary_V = jnp.arange(logits_NV.shape[-1])
    is_target_NV = jnp.clip(index_N1, 0, logits_NV.shape[-1] - 1) == vocabulary_V
    return jnp.where(is_target_NV, logits_NV, 0).sum(axis=-1)


def _summed(plan: Plan, judged: Judged, weights_BS: jax.Array) -> tuple[CrossEntropy, jax.Array]:
    """Returns the sums over all tokens, and each token's loss."""
    weights_BS = weights_BS.astype(jnp.float32)
    loss_BS = judged.nll + plan.z_loss * judged.log_sum**2
    values = (loss_BS, judged.nll, judged.is_correct)
    return CrossEntropy(*((weights_BS * value_BS).sum() for value_BS in values)), loss_BS


def _by_weight(plan: Plan, by_logits_NV: jax.Array, x_NE: jax.Array) -> jax.Array:
    """Returns a chunk's gradient of the weight, apart for each shard of sequence and batch.

    Summed over all of them it would cost a reduction between devices in every chunk; so the shards
    are summed up once, after the last.
    """
    shards = (plan.sequence_shards, plan.batch_shards)
    if shards == (1, 1):
        return _product("nv,ne->ve", by_logits_NV, x_NE)[None, None]
    by_logits, x = (array.reshape(*shards, -1, *array.shape[1:]) for array in (by_logits_NV, x_NE))
    return _product("qrnv,qrne->qrve", by_logits, x)


def _added_up(total_QRVE: jax.Array) -> jax.Array:
    """Adds up what the shards have apart, each column on the devices that hold it.

    XLA would add up the whole of it on all devices, over the network between slices too, and cut
    it then.
    """
    summed, columns = mesh_axes("sequence", "batch"), mesh_axes("embed")
    rest = tuple(axis for axis in summed if axis not in columns)
    is_even = indivisible("columns", total_QRVE.shape[-1], "embed") is None
    if total_QRVE.shape[:2] != (parts("sequence"), parts("batch")) or not is_even:
        return constrain(total_QRVE.sum(axis=(0, 1)), "vocab", "embed")
    if not set(columns) <= set(summed) or set(columns) & set(mesh_axes("vocab")):
        return constrain(total_QRVE.sum(axis=(0, 1)), "vocab", "embed")

    def part(total_QRVE: jax.Array) -> jax.Array:
        by_weight_VE = total_QRVE[0, 0]
        if columns:
            by_weight_VE = jax.lax.psum_scatter(
                by_weight_VE, columns, scatter_dimension=1, tiled=True
            )
        return jax.lax.psum(by_weight_VE, rest) if rest else by_weight_VE

    apart = ("sequence", "batch", "vocab", None)
    by_weight_VE: jax.Array = on_each_device(part, (apart,), ("vocab", "embed"))(total_QRVE)
    return by_weight_VE


def _kept_apart(total_QRVE: jax.Array) -> jax.Array:
    if total_QRVE.shape[:2] == (1, 1):
        return total_QRVE
    axes = [
        name if size > 1 else None
        for name, size in zip(("sequence", "batch"), total_QRVE.shape, strict=False)
    ]
    return constrain(total_QRVE, *axes, "vocab", None)


def _gathered(weight_VE: jax.Array) -> jax.Array:
    """Gathers the rows of the weight once, before the loop; the vocabulary stays split."""
    return constrain(weight_VE, "vocab", None)


def _logits(x_NE: jax.Array, weight_VE: jax.Array) -> jax.Array:
    logits_NV = _product("ne,ve->nv", x_NE, weight_VE)
    note_activation(logits_NV, "batch", "vocab")
    return logits_NV


def _split(plan: Plan, x_BSE: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array) -> Chunk:
    """Splits the sequence, and fills it up with zeros where it does not divide.

    The shards of the sequence come first among the tokens of a chunk, and then those of the batch:
    so the part of a device is one run of tokens, and nothing moves.
    """
    batch, sequence = targets_BS.shape
    shards, part = plan.sequence_shards, sequence // plan.sequence_shards
    length = -(-part // plan.chunks)

    def split(array: jax.Array) -> jax.Array:
        rest = array.shape[2:]
        array = array.reshape(batch, shards, part, *rest)
        missing = length * plan.chunks - part
        if missing:
            array = jnp.pad(array, [(0, 0), (0, 0), (0, missing), *[(0, 0)] * len(rest)])
        array = array.reshape(batch, shards, plan.chunks, length, *rest)
        # From [B, Q, chunks, length] to [chunks, Q, B, length].
        array = jnp.moveaxis(array, (2, 1, 0), (0, 1, 2))
        return array.reshape(plan.chunks, -1, *rest)

    return Chunk(split(x_BSE), split(targets_BS), split(weights_BS.astype(jnp.float32)))


def _joined(plan: Plan, tree: T, shape: tuple[int, ...]) -> T:
    """Undoes the splitting of every array in a tree; `shape` is that of batch and sequence."""
    batch, sequence = shape
    shards, part = plan.sequence_shards, sequence // plan.sequence_shards

    def joined(array: jax.Array) -> jax.Array:
        rest = array.shape[2:]
        array = array.reshape(plan.chunks, shards, batch, -1, *rest)
        array = jnp.moveaxis(array, (0, 1, 2), (2, 1, 0))
        array = array.reshape(batch, shards, -1, *rest)[:, :, :part]
        return array.reshape(batch, sequence, *rest)

    return jax.tree.map(joined, tree)


def _product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _batch_shards(batch: int) -> int:
    """Returns over how many devices the batch is split."""
    shards = parts("batch")
    return shards if batch % shards == 0 else 1


def _sequence_shards(sequence: int) -> int:
    """Returns over how many devices the sequence is split."""
    shards = parts("sequence")
    return shards if sequence % shards == 0 else 1
