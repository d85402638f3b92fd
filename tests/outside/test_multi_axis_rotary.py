"""Positions on several axes, of an outside package: images and text in one sequence."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Component, ConfigError, apply_modifier, from_text, to_text
from dovetail.generate import Generator
from dovetail.layers import TokenContext
from dovetail.learner import ConstantSchedule, Learner, OneForwardOneBackward
from dovetail.models.llama import llama
from dovetail.module import ArraySpec, TokenBatch, functional, initialize, token_batch
from dovetail.parallel import MeshLayout, Placement, use_placement
from dovetail.trainer import Trainer
from tests.outside.multi_axis_rotary import MultiAxisRotaryEmbedding
from tests.outside.steps import EIGHT, decode_in_steps, placement_on, shard_params

VOCAB, ROWS, LENGTH, AXES = 64, 8, 16, 3
SIZES = {"width": 64, "num_layers": 2, "num_heads": 4, "hidden": 48, "vocab_size": VOCAB}
# Each row has two words, six patches of an image of this height and width, and eight words.
GRIDS = ((2, 3), (3, 2), (1, 6), (6, 1)) * 2
PATCHES = slice(2, 8)


def plain() -> Any:
    return llama(**SIZES)


@functools.cache
def model() -> Any:
    config = apply_modifier(plain(), "multi-axis-rope:sections=(2,3,3)")
    assert from_text(to_text(config)) == config
    return config.build()


@functools.cache
def axis_positions() -> np.ndarray:
    """Time, height and width of every token; words are at the same position on all axes."""
    rows = []
    for height, width in GRIDS:
        row, column = np.divmod(np.arange(height * width), width)
        image = 2 + np.stack([np.zeros_like(row), row, column], axis=1)
        words = image.max() + 1 + np.arange(LENGTH - 8)
        rows.append(np.concatenate([_words([0, 1]), image, _words(words)]))
    return np.stack(rows).astype(np.int32)


def _words(positions: Any) -> np.ndarray:
    return np.repeat(np.asarray(positions)[:, None], AXES, axis=1)


@functools.cache
def batch() -> TokenBatch[np.ndarray]:
    tokens = np.random.default_rng(0).integers(1, VOCAB, (ROWS, LENGTH + 1), dtype=np.int32)
    return dataclasses.replace(token_batch(tokens), axis_positions=axis_positions())


class Images(Component):
    """An input that gives the one batch at every step."""

    def spec(self) -> TokenBatch[ArraySpec]:
        def array_spec(leaf: np.ndarray) -> ArraySpec:
            axes = ("batch", "sequence", None)[: leaf.ndim]
            return ArraySpec(leaf.shape, str(leaf.dtype), axes)

        return jax.tree.map(array_spec, batch())

    def batch(self, step: int, rows: slice | None = None) -> TokenBatch[np.ndarray]:
        return jax.tree.map(lambda leaf: leaf[rows or slice(None)], batch())


def trainer(mesh: dict[str, int], **learner: Any) -> Any:
    schedule = ConstantSchedule.Config(peak=1e-2)
    return Trainer.Config(
        model=model().config,
        input=Images.Config(),
        learner=Learner.Config(schedule=schedule, **learner),
        mesh=MeshLayout.Config(**mesh),
        writers={},
        steps=8,
    ).build()


@functools.cache
def trained() -> tuple[Any, list[float]]:
    """Returns parameters and losses of a few steps on a mesh of eight devices."""
    program = trainer(EIGHT).program()
    step, state, losses = program.lowered.compile(), program.initialize(), []
    rows = jax.device_put(batch(), program.batch_shardings)
    for _ in range(8):
        state, report = step(state, rows, program.hyperparameters)
        losses.append(float(report.loss))
    return {path: jnp.asarray(np.asarray(array)) for path, array in state.params.items()}, losses


@functools.cache
def placement() -> Placement:
    return placement_on(EIGHT)


def sharded(params: Any) -> Any:
    return shard_params(model(), params, placement())


def loss(params: Any, batch: TokenBatch) -> jax.Array:
    _, outputs = functional(model(), params, (batch,), training=True, losses="return")
    return sum(found.value() for found in outputs.losses.values())


def logits(built: Any, params: Any, tokens: Any, axes: Any) -> np.ndarray:
    """Returns the logits of whole sequences."""

    def run(params: Any, tokens: jax.Array, axes: Any) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        context = TokenContext(positions, jnp.ones_like(positions), {}, axes)
        return functional(built, params, (tokens, context), method="all_logits")[0]

    return np.asarray(jax.jit(run)(params, jnp.asarray(tokens), axes))


def test_the_loss_falls() -> None:
    losses = trained()[1]
    assert losses[-1] < losses[0] - 0.5


def test_it_trains_on_a_mesh_as_on_one_device() -> None:
    params = trained()[0]

    def placed(params: Any, batch: TokenBatch) -> jax.Array:
        with use_placement(placement()):
            return loss(params, batch)

    rows = jax.device_put(batch(), placement().sharding(("batch",)))
    value, gradients = jax.jit(jax.value_and_grad(placed))(sharded(params), rows)
    expected, whole = jax.jit(jax.value_and_grad(loss))(params, batch())
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for path, gradient in whole.items():
        assert np.abs(gradient).max() > 0, path
        allowed = 2e-5 * float(np.abs(gradient).max())
        np.testing.assert_allclose(gradients[path], gradient, rtol=0, atol=allowed, err_msg=path)


@pytest.mark.parametrize(
    ("mesh", "learner"),
    [
        ({"pipeline": 2, "fsdp": 2}, {"gradients": OneForwardOneBackward.Config(microbatches=2)}),
        ({"fsdp": 2, "sequence": 2}, {}),
    ],
    ids=["pipeline", "sequence"],
)
def test_stages_and_shards_of_a_sequence_have_the_positions(mesh: Any, learner: Any) -> None:
    program = trainer(mesh, **learner).program(tuple(jax.devices()[:4]))
    state = program.initialize()
    params = {path: jnp.asarray(np.asarray(array)) for path, array in state.params.items()}
    rows = jax.device_put(batch(), program.batch_shardings)
    _, report = program.lowered.compile()(state, rows, program.hyperparameters)
    np.testing.assert_allclose(report.loss, jax.jit(loss)(params, batch()), rtol=1e-5)


def test_the_positions_of_patches_matter() -> None:
    tokens, params = batch().tokens, trained()[0]
    found = logits(model(), params, tokens, axis_positions())
    turned = axis_positions().copy()
    turned[:, PATCHES] = turned[:, PATCHES][..., [0, 2, 1]]
    other = logits(model(), params, tokens, turned)
    np.testing.assert_array_equal(found[:, :2], other[:, :2])
    assert np.abs(found - other).max() > 0.01


@pytest.mark.parametrize("on_mesh", [False, True])
def test_step_by_step_equals_all_at_once(on_mesh: bool) -> None:
    params = sharded(trained()[0]) if on_mesh else trained()[0]
    where, axes = placement() if on_mesh else None, jnp.asarray(axis_positions())
    config, tokens = model().config, jnp.asarray(batch().tokens)
    # The prefill ends in the middle of the image.
    found, _ = decode_in_steps(config, params, tokens, 5, where, axis_positions_BSA=axes)
    expected = logits(model(), trained()[0], tokens, axes)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("on_mesh", [False, True])
def test_new_tokens_follow_the_largest_position_of_their_prompt(on_mesh: bool) -> None:
    params = sharded(trained()[0]) if on_mesh else trained()[0]
    where, new = placement() if on_mesh else None, 4
    generator = Generator(model().config, params, length=LENGTH + 4, placement=where)
    lengths = (8, 9, 12, 16, 8)  # some prompts end with their image
    prompts = [batch().tokens[row, :size].tolist() for row, size in enumerate(lengths)]
    axes = [axis_positions()[row, :size] for row, size in enumerate(lengths)]
    options = {"max_new_tokens": new, "axis_positions": axes}
    generations = generator.generate(prompts, **options)
    for prompt, positions, generation in zip(prompts, axes, generations, strict=True):
        tokens = [*prompt, *generation.tokens]
        following = positions.max() + 1 + np.arange(new)
        whole = np.concatenate([positions, _words(following)])
        at_once = logits(model(), trained()[0], np.array([tokens]), whole[None])
        expected = at_once[0, len(prompt) - 1 : -1].argmax(axis=-1)
        assert generation.tokens == expected.tolist()
    chunks = [chunk for chunk in generator.stream(prompts, **options) if chunk.row == 0]
    assert [token for chunk in chunks for token in chunk.tokens] == generations[0].tokens


def test_it_is_ordinary_rope_where_all_axes_are_equal() -> None:
    built = plain().build()
    params, tokens = initialize(built, jax.random.key(1)), batch().tokens
    expected = logits(built, params, tokens, None)
    np.testing.assert_array_equal(logits(model(), params, tokens, None), expected)
    equal = np.broadcast_to(_words(np.arange(LENGTH)), (ROWS, LENGTH, AXES))
    np.testing.assert_array_equal(logits(model(), params, tokens, equal), expected)
    found = Generator(model().config, params, length=LENGTH + 4)
    ordinary = Generator(plain(), params, length=LENGTH + 4)
    prompts = tokens[:2].tolist()
    options = {"max_new_tokens": 3}
    assert found.generate(prompts, **options) == ordinary.generate(prompts, **options)
    with_axes = found.generate(prompts, **options, axis_positions=list(equal[:2]))
    assert with_axes == ordinary.generate(prompts, **options)


def test_a_feature_turns_with_the_position_on_its_own_axis() -> None:
    """Against complex numbers: pair i of a head is one number, which its angle rotates."""
    config = MultiAxisRotaryEmbedding.Config(head_width=16, sections=(2, 3, 3), base=100.0)
    x = np.random.default_rng(1).normal(size=(ROWS, LENGTH, 2, 16)).astype(np.float32)
    ones = jnp.ones((ROWS, LENGTH), jnp.int32)
    context = TokenContext(ones, ones, {}, jnp.asarray(axis_positions()))
    (found, _), _ = functional(config.build(), {}, (jnp.asarray(x), jnp.asarray(x), context))
    pairs = x[..., :8] + 1j * x[..., 8:]
    for pair, axis in enumerate((0, 0, 1, 1, 1, 2, 2, 2)):
        angle = axis_positions()[..., axis] * 100.0 ** (-pair / 8)
        pairs[..., pair] *= np.exp(1j * angle)[..., None]
    np.testing.assert_allclose(found, np.concatenate([pairs.real, pairs.imag], -1), atol=1e-5)


def test_sections_that_are_not_the_frequencies_of_a_head() -> None:
    config = apply_modifier(plain(), "multi-axis-rope:sections=(2,3,4)")
    with pytest.raises(ConfigError, match="positive numbers that add up to 8, half of the head"):
        config.build()


def test_another_number_of_axes() -> None:
    two = axis_positions()[..., :2]
    with pytest.raises(ConfigError, match="encodes positions on 3 axes, but the tokens have") as at:
        logits(model(), trained()[0], batch().tokens, two)
    assert "stack/layer/attention/positions: this layer" in str(at.value)


BAD_POSITIONS = {
    "one array per prompt (2), got 1": [np.zeros((3, 3), int)],
    "axis_positions[1]: expected integers [tokens, axes], one row for each of the 2 tokens": [
        np.zeros((3, 3), int),
        np.zeros((3, 3), int),
    ],
    "got int64 of shape (2, 2)": [np.zeros((3, 3), int), np.zeros((2, 2), int)],
    "got float64 of shape (3, 3)": [np.zeros((3, 3)), np.zeros((2, 3), int)],
    "got int64 of shape (3,)": [np.arange(3), np.arange(2)],
}


@pytest.mark.parametrize("message", BAD_POSITIONS)
def test_positions_that_do_not_fit_the_prompts(message: str) -> None:
    generator = Generator(model().config, trained()[0], length=LENGTH)
    with pytest.raises(ConfigError) as caught:
        generator.generate(
            [[1, 2, 3], [4, 5]], max_new_tokens=1, axis_positions=BAD_POSITIONS[message]
        )
    assert message in str(caught.value)
