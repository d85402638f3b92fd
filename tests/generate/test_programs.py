"""The compiled programs: the cache is updated in place, and a mesh agrees with one device."""

from typing import Any

import jax
import numpy as np
import pytest

from dovetail.generate import Generator, Greedy, with_kv_cache
from dovetail.generate.programs import DecodePrograms, ModelState
from dovetail.module import initialize, parameter_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement
from tests.generate.sweep import LENGTH, MODELS

STOPS = np.full(4, -1, np.int32)


def prefilled(programs: DecodePrograms, state: ModelState, prompts: list[list[int]]) -> Any:
    tokens = np.zeros((len(prompts), 16), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    lengths = np.asarray([len(prompt) for prompt in prompts], np.int32)
    new = np.full(len(prompts), 8, np.int32)
    return programs.prefill(state, jax.random.key(0), tokens, lengths, new, STOPS)


def test_the_cache_is_updated_in_place() -> None:
    layers, length = 8, 512
    config = MODELS["llama"].clone()
    config.decoder.stack.num_layers = layers
    model = with_kv_cache(config, length).build()
    state = ModelState(initialize(config.build(), jax.random.key(0)), {})
    programs = DecodePrograms(model, Greedy.Config().build(), None)
    rows, _ = prefilled(programs, state, [[1] * 9] * 4)
    cache_bytes = sum(array.nbytes for array in rows.cache.values())
    compiled = programs.decoder(rows).lower(state, rows, STOPS, 4).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= cache_bytes
    # Temporaries are a few layers' share, never a second cache.
    assert memory.temp_size_in_bytes < cache_bytes / 2
    newer, _ = compiled(state, rows, STOPS, 4)
    assert all(array.is_deleted() for array in rows.cache.values())
    assert not any(array.is_deleted() for array in newer.cache.values())


# Many devices

CONFIG = MODELS["grouped, tied"]
PROMPTS = [[1, 2, 3], [4] * 13, [5], [6] * 16]


def placement(**sizes: int) -> Placement:
    mesh = MeshLayout.Config(**sizes).build().mesh()
    return Placement(mesh, AxisRules.Config().build())


def spread_parameters(spread: Placement) -> dict[str, jax.Array]:
    specs = parameter_specs(CONFIG.build())
    shardings = {path: spread.sharding(spec.axes, spec.shape, path) for path, spec in specs.items()}
    return initialize(CONFIG.build(), jax.random.key(0), shardings)


@pytest.fixture(scope="module")
def on_one_device() -> list[list[int]]:
    params = initialize(CONFIG.build(), jax.random.key(0))
    results = Generator(CONFIG, params, length=LENGTH).generate(PROMPTS, max_new_tokens=8)
    return [result.tokens for result in results]


def test_a_mesh_gives_the_tokens_of_one_device(on_one_device: list[list[int]]) -> None:
    # A mesh that splits the sequence, and needs more rows than there are prompts.
    spread = placement(data=2, fsdp=2, sequence=2)
    many = Generator(CONFIG, spread_parameters(spread), length=LENGTH, placement=spread)
    results = many.generate(PROMPTS[:3], max_new_tokens=8)
    assert [result.tokens for result in results] == on_one_device[:3]


def test_a_spread_cache_stays_where_it_is(on_one_device: list[list[int]]) -> None:
    spread = placement(data=2, fsdp=2, model=2)
    programs = DecodePrograms(
        with_kv_cache(CONFIG, LENGTH).build(), Greedy.Config().build(), spread
    )
    state = ModelState(spread_parameters(spread), {})
    rows, first = prefilled(programs, state, PROMPTS)
    before = {path: array.sharding for path, array in rows.cache.items()}
    assert all(not sharding.is_fully_replicated for sharding in before.values())
    newer, tokens = programs.decode(state, rows, STOPS, 7)
    assert {path: array.sharding for path, array in newer.cache.items()} == before
    assert all(array.is_deleted() for array in rows.cache.values())
    assert first.sharding.is_fully_replicated
    assert tokens.sharding.is_fully_replicated
    assert np.concatenate([first, tokens[:, :7]], axis=1).tolist() == on_one_device
