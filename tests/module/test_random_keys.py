"""Random keys depend on call path, layer index and draw count; never on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail.module import Module, checkpoint, functional, scan, vmap
from tests.module.example_modules import KEY, X_BE, Host, Noise, Sequence, Stack, over_layers


def noise_of(config, key=KEY, x=X_BE) -> dict[str, np.ndarray]:
    _, outputs = jax.jit(lambda x: functional(config.build(), {}, x, key=key))(x)
    return {path: np.asarray(value) for path, value in outputs.outputs.items()}


def all_differ(arrays) -> bool:
    return len({np.asarray(array).tobytes() for array in arrays}) == len(arrays)


def test_each_call_path_has_its_own() -> None:
    config = Sequence.Config(parts={"a": Noise.Config(), "b": Noise.Config()})
    noise = noise_of(config)
    assert all_differ(list(noise.values()))
    wider = Sequence.Config(parts={"c": Noise.Config(), "b": Noise.Config()})
    np.testing.assert_array_equal(noise_of(wider)["parts/b/noise"], noise["parts/b/noise"])
    np.testing.assert_array_equal(noise_of(config)["parts/b/noise"], noise["parts/b/noise"])
    other = noise_of(config, jax.random.key(1))
    assert not np.allclose(other["parts/b/noise"], noise["parts/b/noise"])


def test_each_layer_of_a_scanned_stack_has_its_own() -> None:
    noise_LBE = noise_of(Stack.Config(layer=Noise.Config()))["layer/noise"]
    assert all_differ(list(noise_LBE))
    unrolled = noise_of(Stack.Config(layer=Noise.Config(), unroll=3))["layer/noise"]
    np.testing.assert_array_equal(noise_LBE, unrolled)
    nested = noise_of(Stack.Config(layer=Stack.Config(layer=Noise.Config(), num_layers=2)))
    assert all_differ(list(nested["layer/layer/noise"].reshape(6, -1)))


def test_without_jit_the_keys_are_the_same() -> None:
    config = Stack.Config(layer=Noise.Config())
    with jax.disable_jit():
        _, outputs = functional(config.build(), {}, X_BE, key=KEY)
    noise = noise_of(config)["layer/noise"]
    np.testing.assert_allclose(outputs.outputs["layer/noise"], noise, rtol=1e-5)


def test_each_copy_under_vmap_has_its_own() -> None:
    def mapped(model, x):
        return vmap(model.many, model.many, x, in_axes=None)

    _, outputs = functional(Host.Config(child=Noise.Config()).build(), {}, (mapped, X_BE), key=KEY)
    assert all_differ(list(outputs.outputs["many/noise"]))


def test_the_device_does_not_matter() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(X_BE, NamedSharding(mesh, PartitionSpec("data")))
    config = Stack.Config(layer=Noise.Config())
    np.testing.assert_array_equal(
        noise_of(config)["layer/noise"], noise_of(config, x=sharded)["layer/noise"]
    )


class Draws(Module):
    """Returns a number from its key."""

    def __call__(self) -> jax.Array:
        return jax.random.uniform(self.random_key())


AGAIN = {
    "plain": lambda model: model.one(),
    "checkpoint": lambda model: checkpoint(model.one)(),
    "nested": lambda model: checkpoint(checkpoint(model.one))(),
    "scan": lambda model: scan(model.many, lambda c, _: (c, model.many()), 0)[1][0],
    "vmap": lambda model: vmap(model.many, model.many)[0],
}


@pytest.mark.parametrize("way", AGAIN)
def test_asking_again_gives_another_also_through_a_transformation(way: str) -> None:
    def thrice(model, _):
        return [AGAIN[way](model) for _ in range(3)]

    model = Host.Config(child=Draws.Config()).build()
    first, _ = functional(model, {}, (thrice, None), key=KEY)
    assert all_differ(first)
    second, _ = functional(model, {}, (thrice, None), key=KEY)
    np.testing.assert_array_equal(first, second)


def test_a_body_that_is_traced_twice_draws_the_same() -> None:
    """A carry that starts as a weak integer makes jax.lax.scan trace its body again."""

    def body(model, start):
        return scan(model.many, lambda c, _: (c + model.many() * 0, model.many()), start)[1]

    model = Host.Config(child=Draws.Config()).build()
    weak, _ = functional(model, {}, (body, 0), key=KEY)
    strong, _ = functional(model, {}, (body, jnp.zeros(())), key=KEY)
    np.testing.assert_array_equal(weak, strong)


def test_a_missing_key_names_the_path_that_asked() -> None:
    model = Sequence.Config(parts={"a": Stack.Config(layer=Noise.Config())}).build()
    with pytest.raises(ValueError, match=r"parts/a/layer/key: a random key was requested.*key="):
        functional(model, {}, X_BE)


def test_training_reaches_every_module() -> None:
    def how(model, x):
        return model.training, over_layers(model, x)

    class Active(Module):
        def __call__(self, x):
            return x * 2 if self.training else x

    model = Host.Config(child=Active.Config()).build()
    assert functional(model, {}, (how, 1.0), training=True)[0] == (True, 8.0)
    assert functional(model, {}, (how, 1.0))[0] == (False, 1.0)
