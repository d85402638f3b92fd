"""An encoder-decoder of an outside package: it learns from its source, and decodes with a cache."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Component, ConfigError, apply_modifier, from_text, to_text
from dovetail.features import features
from dovetail.generate import Generator
from dovetail.layers import TokenContext
from dovetail.learner import ConstantSchedule, Learner
from dovetail.models.llama import llama
from dovetail.module import ArraySpec, TokenBatch, functional
from dovetail.parallel import Placement, use_placement
from dovetail.run import Run, train_run
from dovetail.runtime import RunFolder, abstract_state
from dovetail.trainer import Trainer
from tests.outside import encoder_decoder  # noqa: F401  # registers the modifier
from tests.outside.steps import (
    EIGHT,
    ONE,
    decode_in_steps,
    layout_on,
    placement_on,
    shard_params,
)

WIDTH, VOCAB, ROWS, SOURCE, LENGTH = 32, 64, 8, 10, 8
MESHES = {"one": ONE, "eight": EIGHT}


@functools.cache
def model() -> Any:
    features()  # as the command line does: the modifier builds on `no-positions`
    sizes = {"width": WIDTH, "num_layers": 2, "num_heads": 4, "hidden": 48}
    config = apply_modifier(llama(**sizes, vocab_size=VOCAB), "encoder-decoder")
    assert from_text(to_text(config)) == config
    return config.build()


def source() -> dict[str, jax.Array]:
    """Sources of several lengths."""
    tokens = jax.random.randint(jax.random.key(0), (ROWS, SOURCE), 1, VOCAB)
    lengths = jnp.array([10, 9, 8, 7, 6, 5, 4, 3])
    segment_ids = (jnp.arange(SOURCE) < lengths[:, None]).astype(jnp.int32)
    return {"source": tokens, "source_segment_ids": segment_ids}


def batch() -> TokenBatch:
    """The target is the source from its end, so that it can be learned from the source alone."""
    reverse = jnp.flip(source()["source"][:, : LENGTH + 1], axis=1)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))
    ones = jnp.ones_like(positions)
    return TokenBatch(
        tokens=reverse[:, :-1],
        targets=reverse[:, 1:],
        positions=positions,
        segment_ids=ones,
        loss_weights=ones.astype(jnp.float32),
        extras=source(),
    )


def loss(params: Any, batch: TokenBatch) -> jax.Array:
    _, outputs = functional(model(), params, (batch,), training=True, losses="return")
    return sum(found.value() for found in outputs.losses.values())


class Reversals(Component):
    """An input that gives the one batch at every step."""

    def spec(self) -> TokenBatch[ArraySpec]:
        def array_spec(leaf: jax.Array) -> ArraySpec:
            return ArraySpec(leaf.shape, str(leaf.dtype), ("batch", None))

        return jax.tree.map(array_spec, batch())

    def batch(self, step: int, rows: slice | None = None) -> TokenBatch[np.ndarray]:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows or slice(None)], batch())


@functools.cache
def trained(mesh: str = "eight") -> tuple[Any, list[float], list[int]]:
    """Trains a run on one device or on eight; returns parameters, losses, what it generates."""
    trainer = Trainer.Config(
        model=model().config,
        input=Reversals.Config(),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2)),
        mesh=layout_on(MESHES[mesh]),
        writers={},
        steps=12,
    ).build()
    program = trainer.program()
    with tempfile.TemporaryDirectory() as folder:
        outcome = train_run(trainer, RunFolder(Path(folder)), {})
        run = Run(folder)
        inputs = {name: value[:1] for name, value in source().items()}
        prompt = batch().tokens[0, :4].tolist()
        generated = run.generate(prompt, max_new_tokens=3, temperature=0, inputs=inputs).tokens
        like = abstract_state(program.state_shapes, program.state_shardings)
        _, state = trainer.checkpointer.restore(like)
    params = {path: jnp.asarray(np.asarray(array)) for path, array in state.params.items()}
    return params, [value for _, value in outcome.losses], generated


@functools.cache
def placement() -> Placement:
    return placement_on(EIGHT)


def sharded(params: Any) -> Any:
    return shard_params(model(), params, placement())


@pytest.mark.parametrize("mesh", MESHES)
def test_a_trainer_trains_it(mesh: str) -> None:
    losses = trained(mesh)[1]
    assert losses[-1] < losses[0] - 0.5


def test_a_run_on_a_mesh_is_that_of_one_device() -> None:
    one, eight = trained("one"), trained("eight")
    np.testing.assert_allclose(eight[1], one[1], rtol=1e-4)
    assert eight[2] == one[2], "they generate the same"


def test_it_trains_on_a_mesh_as_on_one_device() -> None:
    params = trained()[0]

    def placed(params: Any, batch: TokenBatch) -> jax.Array:
        with use_placement(placement()):
            return loss(params, batch)

    rows = jax.device_put(batch(), placement().sharding(("batch",)))
    value, gradients = jax.jit(jax.value_and_grad(placed))(sharded(params), rows)
    expected, plain = jax.jit(jax.value_and_grad(loss))(params, batch())
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for path, gradient in plain.items():
        assert np.abs(gradient).max() > 0, path
        allowed = 2e-5 * float(np.abs(gradient).max())
        np.testing.assert_allclose(gradients[path], gradient, rtol=0, atol=allowed, err_msg=path)


def test_the_bias_of_the_encoder_alone_has_buckets_of_later_tokens() -> None:
    gradients = jax.jit(jax.grad(loss))(trained()[0], batch())
    buckets = {
        path.removesuffix("stack/layer/attention/scores/table"): np.flatnonzero(
            np.abs(gradient).max(axis=(0, 2))
        ).tolist()
        for path, gradient in gradients.items()
        if path.endswith("scores/table")
    }
    both = [*range(9), *range(17, 25)]  # of distances 0 to 9: those from 8 on share a bucket
    assert buckets == {"decoder/encoder/": both, "decoder/": list(range(LENGTH))}


@functools.cache
def logits_at_once() -> np.ndarray:
    given = batch()
    context = TokenContext(given.positions, given.segment_ids, source())
    run = jax.jit(lambda p, t, c: functional(model(), p, (t, c), method="all_logits")[0])
    return np.asarray(run(trained()[0], given.tokens, context))


def test_padding_of_the_source_is_not_attended_to() -> None:
    given, inputs = batch(), source()
    other = jnp.where(inputs["source_segment_ids"] > 0, inputs["source"], 1)
    context = TokenContext(given.positions, given.segment_ids, inputs | {"source": other})
    found, _ = functional(model(), trained()[0], (given.tokens, context), method="all_logits")
    np.testing.assert_allclose(found, logits_at_once(), atol=1e-5)
    context = TokenContext(given.positions, given.segment_ids, inputs | {"source": 0 * other})
    found, _ = functional(model(), trained()[0], (given.tokens, context), method="all_logits")
    assert np.abs(found - logits_at_once()).max() > 0.01


@pytest.mark.parametrize("on_mesh", [False, True])
def test_step_by_step_equals_all_at_once(on_mesh: bool) -> None:
    params = sharded(trained()[0]) if on_mesh else trained()[0]
    where = placement() if on_mesh else None
    tokens = batch().tokens
    found, cache = decode_in_steps(model().config, params, tokens, 3, where, source())
    np.testing.assert_allclose(found, logits_at_once(), atol=2e-5)
    assert {path.split("/")[1] for path in cache} == {"stack"}, "the encoder caches nothing"


@pytest.mark.parametrize("on_mesh", [False, True])
def test_it_generates_from_the_source(on_mesh: bool) -> None:
    params = sharded(trained()[0]) if on_mesh else trained()[0]
    where = placement() if on_mesh else None
    generator = Generator(model().config, params, length=LENGTH, placement=where)
    prompts = batch().tokens[:5, :4].tolist()  # not a multiple of the devices
    inputs = {name: value[:5] for name, value in source().items()}
    generations = generator.generate(prompts, max_new_tokens=3, inputs=inputs)
    expected = logits_at_once()[:5, 3].argmax(axis=-1)
    assert [generation.tokens[0] for generation in generations] == expected.tolist()
    assert generations[0].tokens == trained()[2], "as the run does, from its folder"
    streamed = generator.stream(prompts, max_new_tokens=3, inputs=inputs)
    tokens = [token for chunk in streamed if chunk.row == 4 for token in chunk.tokens]
    assert tokens == generations[4].tokens


def test_what_is_missing_is_said() -> None:
    generator = Generator(model().config, trained()[0], length=LENGTH)
    with pytest.raises(ConfigError, match=r"cross_attention.*asks for the input 'encoder'"):
        generator.generate([[1, 2]], max_new_tokens=1)
    with pytest.raises(ConfigError, match=r"inputs\['source'\]: expected one row per prompt \(1\)"):
        generator.generate([[1, 2]], max_new_tokens=1, inputs=source())
