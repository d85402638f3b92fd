"""An encoder-decoder of an outside package: it learns from its source, and decodes with a cache."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, apply_modifier, from_text, to_text
from dovetail.generate import Generator, with_kv_cache
from dovetail.layers import TokenContext
from dovetail.models.llama import llama
from dovetail.module import Batch, functional, initialize, parameter_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.outside import encoder_decoder  # noqa: F401  # registers the modifier

WIDTH, VOCAB, ROWS, SOURCE, LENGTH = 32, 64, 8, 10, 8


@functools.cache
def model() -> Any:
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


def batch() -> Batch:
    """The target is the source from its end, so that it can be learned from the source alone."""
    reverse = jnp.flip(source()["source"][:, : LENGTH + 1], axis=1)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))
    ones = jnp.ones_like(positions)
    return Batch(
        tokens=reverse[:, :-1],
        targets=reverse[:, 1:],
        positions=positions,
        segment_ids=ones,
        loss_weights=ones.astype(jnp.float32),
        extras=source(),
    )


def loss(params: Any, batch: Batch) -> jax.Array:
    _, outputs = functional(model(), params, (batch,), training=True, losses="return")
    return sum(found.value() for found in outputs.losses.values())


@functools.cache
def trained() -> tuple[Any, list[float]]:
    params, losses = initialize(model(), jax.random.key(1)), []
    step = jax.jit(jax.value_and_grad(loss))
    for _ in range(12):
        value, gradients = step(params, batch())
        params = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients)
        losses.append(float(value))
    return params, losses


@functools.cache
def placement() -> Placement:
    mesh = MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()
    return Placement(mesh, AxisRules.Config().build())


def sharded(params: Any) -> Any:
    shardings = {
        path: placement().sharding(spec.axes, spec.shape, path)
        for path, spec in parameter_specs(model()).items()
    }
    return jax.device_put(params, shardings)


def test_it_trains() -> None:
    losses = trained()[1]
    assert losses[-1] < losses[0] - 0.5


def test_it_trains_on_a_mesh_as_on_one_device() -> None:
    params = trained()[0]

    def placed(params: Any, batch: Batch) -> jax.Array:
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


def test_step_by_step_equals_all_at_once() -> None:
    decoding, given = with_kv_cache(model().config, LENGTH).build(), batch()
    step = jax.jit(
        lambda p, t, c, cache: functional(decoding, p, (t, c), cache=cache, method="all_logits")
    )
    cache: Any = {}
    found, start, inputs = [], 0, source()
    for size in (3, *(1,) * (LENGTH - 3)):
        span = slice(start, start + size)
        context = TokenContext(given.positions[:, span], given.segment_ids[:, span], inputs)
        logits, outputs = step(
            trained()[0], given.tokens[:, span], context.promise_contiguous(), cache
        )
        found.append(np.asarray(logits))
        cache, start, inputs = outputs.cache, start + size, {}  # the source is given once
    np.testing.assert_allclose(np.concatenate(found, axis=1), logits_at_once(), atol=2e-5)
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
    streamed = generator.stream(prompts, max_new_tokens=3, inputs=inputs)
    tokens = [token for chunk in streamed if chunk.row == 4 for token in chunk.tokens]
    assert tokens == generations[4].tokens


def test_what_is_missing_is_said() -> None:
    generator = Generator(model().config, trained()[0], length=LENGTH)
    with pytest.raises(ConfigError, match=r"cross_attention.*asks for the input 'encoder'"):
        generator.generate([[1, 2]], max_new_tokens=1)
    with pytest.raises(ConfigError, match=r"inputs\['source'\]: expected one row per prompt \(1\)"):
        generator.generate([[1, 2]], max_new_tokens=1, inputs=source())
