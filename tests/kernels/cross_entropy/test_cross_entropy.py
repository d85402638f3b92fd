"""Cross-entropy: the reference against Optax, the chunked one against the reference."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.kernels import choices, clear_choices, prefer, strict, target_platform
from dovetail.kernels.cross_entropy import CrossEntropy, SoftCap, cross_entropy
from dovetail.kernels.cross_entropy import chunked as chunked_module
from dovetail.kernels.cross_entropy.chunked import chunked, count_chunks
from dovetail.kernels.cross_entropy.reference import reference
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement

Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
Loss = Callable[..., CrossEntropy]


def inputs_of(batch: int, sequence: int, vocabulary: int, dtype: str = "float32") -> Inputs:
    """Returns random inputs, with weights of many sizes, some of them 0."""
    generator = np.random.default_rng(sequence)
    x_BSE = jnp.asarray(generator.standard_normal((batch, sequence, 16)), dtype)
    weight_VE = jnp.asarray(generator.standard_normal((vocabulary, 16)), dtype)
    targets_BS = jnp.asarray(generator.integers(0, vocabulary, (batch, sequence)), jnp.int32)
    weights_BS = generator.uniform(size=(batch, sequence)) * generator.integers(0, 2, sequence)
    return x_BSE, weight_VE, targets_BS, jnp.asarray(weights_BS, jnp.float32)


def results_of(loss: Loss, **options: Any) -> Callable[..., Any]:
    """Returns a function from inputs to the sums and the gradients of three times the loss."""

    def compute(x: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array) -> Any:
        def scaled(x: jax.Array, weight: jax.Array, weights: jax.Array) -> Any:
            sums = loss(x, weight, targets, weights, **options)
            return 3 * sums.loss_sum, sums

        return jax.grad(scaled, (0, 1, 2), has_aux=True)(x, weight, weights)

    return compute


def assert_same(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Compares sums and gradients."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        # In NumPy: op by op, JAX would compile for every shape.
        values = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(*values, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_the_reference_agrees_with_optax(z_loss: float) -> None:
    def theirs(
        x: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array, z_loss: float
    ) -> CrossEntropy:
        logits = x @ weight.T
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        z_sum = (weights * jax.nn.logsumexp(logits, -1) ** 2).sum()
        correct = (weights * (logits.argmax(-1) == targets)).sum()
        nll_sum = (weights * nll).sum()
        return CrossEntropy(nll_sum + z_loss * z_sum, nll_sum, correct)

    inputs = inputs_of(2, 9, 5)
    got = jax.jit(results_of(reference, z_loss=z_loss))(*inputs)
    assert_same(got, jax.jit(results_of(theirs, z_loss=z_loss))(*inputs))
    assert float(got[1].correct_sum) > 0


@pytest.mark.parametrize(
    ("sequence", "chunks", "z_loss", "vocabulary"),
    [(12, 1, 0.2, 30), (12, 4, 0.2, 30), (13, 4, 0.0, 5), (7, 7, 0.0, 200)],
)
def test_chunked_agrees_with_the_reference(
    sequence: int, chunks: int, z_loss: float, vocabulary: int
) -> None:
    inputs = inputs_of(3, sequence, vocabulary)
    got = jax.jit(results_of(chunked, z_loss=z_loss, chunks=chunks))(*inputs)
    assert_same(got, jax.jit(results_of(reference, z_loss=z_loss))(*inputs))


@pytest.mark.parametrize(
    ("loss", "options"),
    [(reference, {}), (chunked, {"chunks": 1}), (chunked, {"chunks": 4})],
    ids=["reference", "chunked 1", "chunked 4"],
)
def test_mapped_logits_agree_with_the_plain_formula(loss: Loss, options: dict[str, Any]) -> None:
    def plain(
        x: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array, z_loss: float
    ) -> CrossEntropy:
        logits = 2.5 * jnp.tanh((x @ weight.T) / 2.5)
        log_sum = jnp.log(jnp.exp(logits).sum(-1))
        chosen = (jax.nn.one_hot(targets, weight.shape[0]) * logits).sum(-1)
        nll_sum = (weights * (log_sum - chosen)).sum()
        correct = (weights * (chosen >= logits.max(-1))).sum()
        return CrossEntropy(nll_sum + z_loss * (weights * log_sum**2).sum(), nll_sum, correct)

    inputs = inputs_of(2, 13, 30)
    options |= {"z_loss": 0.2, "logit_map": SoftCap(2.5)}
    expected = jax.jit(results_of(plain, z_loss=0.2))(*inputs)
    assert_same(jax.jit(results_of(loss, **options))(*inputs), expected)
    alone = jax.jit(lambda *inputs: loss(*inputs, **options))(*inputs)
    assert_same(alone, expected[1])


def test_mapped_logits_in_half_precision_keep_dtypes() -> None:
    x, weight, targets, weights = inputs_of(2, 16, 30, "bfloat16")
    options = {"z_loss": 0.1, "logit_map": SoftCap(2.5)}
    gradients, _ = jax.jit(results_of(cross_entropy, **options))(x, weight, targets, weights)
    assert [gradient.dtype.name for gradient in gradients] == ["bfloat16", "bfloat16", "float32"]
    exact = [np.asarray(array, np.float32) for array in (x, weight)]
    expected, _ = jax.jit(results_of(reference, **options))(*exact, targets, weights)
    for got, other in zip(gradients, expected, strict=True):
        scale = float(np.abs(other).max())
        np.testing.assert_allclose(np.asarray(got, np.float32), other, atol=0.01 * scale)


def test_without_differentiation_the_sums_are_the_same() -> None:
    inputs = inputs_of(2, 10, 30)
    alone = jax.jit(lambda *inputs: chunked(*inputs, z_loss=0.1, chunks=5))(*inputs)
    assert_same(alone, jax.jit(results_of(chunked, z_loss=0.1, chunks=5))(*inputs)[1])
    program = jax.make_jaxpr(lambda *inputs: chunked(*inputs, z_loss=0.1, chunks=5))(*inputs)
    assert str(program).count("dot_general[") == 1, "the loss alone needs the logits alone"


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("bfloat16", "float32")])
def test_half_precision_sums_in_float32_and_keeps_dtypes(dtypes: tuple[str, str]) -> None:
    x, weight, targets, weights = inputs_of(2, 64, 30, "bfloat16")
    weight = weight.astype(dtypes[1])
    gradients, sums = jax.jit(results_of(chunked, z_loss=0.1, chunks=32))(
        x, weight, targets, weights
    )
    assert [gradient.dtype.name for gradient in gradients] == [*dtypes, "float32"]
    assert all(value.dtype == jnp.float32 for value in sums)
    exact = [np.asarray(array, np.float32) for array in (x, weight)]
    expected, exact_sums = jax.jit(results_of(reference, z_loss=0.1))(*exact, targets, weights)
    np.testing.assert_allclose(sums.loss_sum, exact_sums.loss_sum, rtol=1e-3)
    for got, other in zip(gradients, expected, strict=True):
        # 32 sums of bfloat16 would be off by far more than the one rounding at the end.
        scale = float(np.abs(other).max())
        np.testing.assert_allclose(np.asarray(got, np.float32), other, atol=0.01 * scale)


def test_targets_without_weight_may_be_anything() -> None:
    x, weight, targets, weights = inputs_of(2, 12, 30)
    outside = np.where(np.asarray(weights) > 0, targets, -1)
    beyond = np.where(np.asarray(weights) > 0, targets, 10**6)
    for loss, options in ((reference, {}), (chunked, {"chunks": 4})):
        run = jax.jit(results_of(loss, z_loss=0.1, **options))
        expected = run(x, weight, targets, weights)
        for anything in (outside, beyond):
            got = run(x, weight, anything, weights)
            assert_same((got[0][:2], got[1]), (expected[0][:2], expected[1]))
            assert np.isfinite(got[0][2]).all()


def test_metrics_have_no_gradient() -> None:
    x, weight, targets, weights = inputs_of(2, 6, 10)
    for loss in (reference, chunked):

        def statistics(x: jax.Array, loss: Loss = loss) -> jax.Array:
            sums = loss(x, weight, targets, weights, z_loss=0.0)
            return sums.nll_sum + sums.correct_sum

        assert not np.asarray(jax.jit(jax.grad(statistics))(x)).any()


def test_no_array_of_the_compiled_program_holds_all_logits() -> None:
    inputs = inputs_of(4, 24, 501)

    def largest(loss: Loss, **options: Any) -> int:
        text = jax.jit(results_of(loss, z_loss=0.1, **options)).lower(*inputs).compile().as_text()
        shapes = re.findall(r"f32\[([\d,]+)\]", text)
        return max(int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes)

    assert largest(reference) == 4 * 24 * 501
    # Not even that of two of the six chunks; the largest is the weight, or one chunk.
    assert largest(chunked, chunks=6) == max(501 * 16, 4 * 4 * 501)


@pytest.mark.parametrize(
    ("batch", "sequence", "chunks"),
    [
        (8, 512, 8),
        (8, 511, 8),  # 7 is too few, 73 far too many: the last chunk is filled up
        (8, 530, 10),
        (1, 64, 1),
        (64, 2048, 256),
        (4096, 2, 2),
    ],
)
def test_how_many_chunks(batch: int, sequence: int, chunks: int) -> None:
    assert count_chunks(batch, sequence) == chunks


def test_accelerators_take_larger_chunks() -> None:
    with target_platform("tpu"):
        assert count_chunks(8, 512) == 2


def placement_of(**sizes: int) -> Placement:
    """Returns a placement over all devices."""
    return Placement(MeshLayout.Config(**sizes).build().mesh(), AxisRules.Config().build())


@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [
        ({"data": 8, "fsdp": 1}, 8),
        ({"data": 2, "fsdp": 1, "sequence": 2, "model": 2}, 8),
        # Stages compute all tokens each, so they share nothing.
        ({"pipeline": 2, "data": 4, "fsdp": 1}, 16),
        ({"pipeline": 8, "fsdp": 1}, 64),
    ],
)
def test_devices_that_share_logits_share_larger_chunks(sizes: dict[str, int], chunks: int) -> None:
    with use_placement(placement_of(**sizes)):
        assert count_chunks(64, 512) == chunks


@pytest.mark.parametrize(
    "sizes",
    [
        {"data": 4, "fsdp": 2},
        {"data": 2, "fsdp": 2, "model": 2},
        {"fsdp": 2, "sequence": 2, "model": 2},
    ],
)
def test_sharded_equals_unsharded_and_reduces_once(sizes: dict[str, int]) -> None:
    inputs = inputs_of(8, 12, 32)
    placement = placement_of(**sizes)
    by_batch = placement.sharding(("batch", "sequence"))
    by_vocabulary = placement.sharding(("vocab", "embed"))
    shardings = (by_batch, by_vocabulary, by_batch, by_batch)
    sharded = [jax.device_put(*pair) for pair in zip(inputs, shardings, strict=True)]
    compute = jax.jit(
        results_of(chunked, z_loss=0.1, chunks=3),
        out_shardings=(
            (by_batch, by_vocabulary, by_batch),
            NamedSharding(placement.mesh, PartitionSpec()),
        ),
    )
    with use_placement(placement):
        compiled = compute.lower(*sharded).compile()
    assert_same(compiled(*sharded), jax.jit(results_of(reference, z_loss=0.1))(*inputs))
    # Between devices nothing as large as the weight may move in the loop over chunks.
    gathered = _collectives_in_loops(compiled.as_text())
    assert all(size < 32 * 16 / sizes.get("model", 1) for size in gathered), gathered
    # Outside of it the rows of the weight are gathered, but never the vocabulary.
    assert "model" not in sizes or "f32[32,16]" not in compiled.as_text()


def _collectives_in_loops(program: str) -> list[int]:
    """Returns the sizes of the collectives outside the main computation."""
    sizes, is_main = [], False
    for line in program.splitlines():
        if line.endswith("{"):
            is_main = line.startswith("ENTRY")
        if not is_main and re.search(r" (all-reduce|all-gather|reduce-scatter|all-to-all)\(", line):
            shapes = re.findall(r"f32\[([\d,]*)\]", line.split(" all-")[0].split(" reduce-")[0])
            sizes += [int(np.prod([int(s) for s in shape.split(",") if s])) for shape in shapes]
    return sizes


def test_the_op_chooses_the_chunked_one_and_reports_it() -> None:
    clear_choices()
    with strict(), warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(cross_entropy, *inputs_of(2, 6, 10))
    assert choices() == ["cross_entropy: chunked (cpu)"]
    clear_choices()
    with prefer(cross_entropy="reference"):
        jax.eval_shape(cross_entropy, *inputs_of(2, 6, 10))
    assert choices() == ["cross_entropy: reference (cpu, preferred)"]


def test_a_batch_that_does_not_divide_has_no_partial_sums() -> None:
    with use_placement(placement_of(data=8, fsdp=1)):
        assert chunked_module._shards(16, "batch") == 8
        assert chunked_module._shards(12, "batch") == 1
    assert chunked_module._shards(16, "batch") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: jnp.zeros((2, 6, 15))}, r"x of \[batch.* got \(2, 6, 15\) and \(10, 16\)"),
        ({2: jnp.zeros((2, 6))}, r"targets_BS of shape \(2, 6\) and integer dtype, got .*float32"),
        ({3: jnp.zeros((2, 5))}, r"weights_BS of shape \(2, 6\).*got \(2, 5\)"),
        ({3: jnp.zeros((2, 6), int)}, r"weights_BS of shape \(2, 6\) and floating dtype"),
    ],
)
def test_calls_that_make_no_sense_are_refused(changes: dict[int, Any], message: str) -> None:
    inputs = list(inputs_of(2, 6, 10))
    for place, array in changes.items():
        inputs[place] = array
    with pytest.raises(ValueError, match=r"^cross_entropy: expected " + message):
        cross_entropy(*inputs)
