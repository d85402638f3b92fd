"""Small modules shared by the tests of this subpackage. Legend: B batch, E width, L layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.module import (
    Initializer,
    Maximum,
    Module,
    Normal,
    Shared,
    parameter,
    parameter_specs,
    repeated,
    scan,
    variable,
)


class Dense(Module):
    """A matrix and a bias."""

    class Config(Module.Config["Dense"]):
        width: int = 4
        init: ConfigOf[Initializer] = Normal.Config(standard_deviation=1.0)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.width = config.width
        shape = (config.width, config.width)
        axes, fans = ("embed", "mlp"), {"fan_in": (0,), "fan_out": (1,)}
        self.weight = parameter(shape, axes, config.init, **fans)
        self.bias = parameter((config.width,), ("mlp",), config.init)

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        return x_BE @ self.weight + self.bias

    def transposed(self, x_BE: jax.Array) -> jax.Array:
        self.add_output("seen", x_BE)
        return x_BE @ self.weight.T


class Chatty(Module):
    """Scales its input, and adds a loss and two kinds of summary that are sums over the batch."""

    class Config(Module.Config["Chatty"]):
        width: int = 4

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scale = parameter((config.width,), ("embed",), Normal.Config(standard_deviation=1.0))

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        self.add_loss("square", jnp.sum(x_BE**2 * self.scale), x_BE.shape[0])
        self.add_summary("mean", x_BE.mean(), weight=x_BE.shape[0])
        self.add_summary("largest", Maximum(x_BE.max()))
        return jnp.tanh(x_BE * self.scale)


class Counter(Module):
    """Counts its calls in a variable, and keeps the last input in the cache."""

    class Config(Module.Config["Counter"]):
        width: int = 4

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scale = parameter((config.width,), ("embed",))
        self.calls = variable((), (), dtype="int32")

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        self.calls = self.calls + 1
        past = self.read_cache("last")
        self.write_cache("last", x_BE)
        return x_BE * self.scale + (0.0 if past is None else past)


class Noise(Module):
    """Hands out its random draws as an output."""

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        noise_BE = jax.random.normal(self.random_key(), x_BE.shape)
        self.add_output("noise", noise_BE)
        return x_BE + noise_BE


class Stack(Module):
    """A scanned stack of any layer."""

    class Config(Module.Config["Stack"]):
        layer: ConfigOf[Module] = Dense.Config()
        num_layers: int = 3
        unroll: int = 1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = repeated(config.layer.build(), config.num_layers)
        self.unroll = config.unroll

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        def body(x_BE: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.layer(x_BE), None

        return scan(self.layer, body, x_BE, unroll=self.unroll)[0]


class Sequence(Module):
    """Named children, one after another."""

    class Config(Module.Config["Sequence"]):
        parts: dict[str, ConfigOf[Module]] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.parts = {name: part.build() for name, part in config.parts.items()}

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        for part in self.parts.values():
            x_BE = part(x_BE)
        return x_BE


class Tied(Module):
    """An input map and an output map that is tied to it unless swapped."""

    class Config(Module.Config["Tied"]):
        inward: ConfigOf[Module] = Dense.Config()
        outward: ConfigOf[Module] = Shared.Config(path="inward")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.inward = config.inward.build()
        self.outward = config.outward.build()

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        return self.outward(jnp.tanh(self.inward(x_BE)))


class LowRank(Module):
    """Adds a low-rank product to whatever it wraps."""

    class Config(Module.Config["LowRank"]):
        base: ConfigOf[Module] = wraps()
        width: int = 4
        rank: int = 1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.base = config.base.build()
        one = Normal.Config(standard_deviation=1.0)
        self.low_in = parameter((config.width, config.rank), ("embed", None), one)
        self.low_out = parameter((config.rank, config.width), (None, "mlp"))

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        return self.base(x_BE) + x_BE @ self.low_in @ self.low_out


class Host(Module):
    """Runs a function of the test inside the model: one child, and one that is repeated thrice."""

    class Config(Module.Config["Host"]):
        child: ConfigOf[Module] = Chatty.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.one = config.child.build()
        self.many = repeated(config.child.build(), 3)

    def __call__(self, how: Callable[[Any, Any], Any], x: Any) -> Any:
        return how(self, x)


def over_layers(host: Any, x: Any, **options: Any) -> Any:
    """Scans the repeated child of a host."""
    return scan(host.many, lambda carry, _: (host.many(carry), None), x, **options)[0]


def weights(model: Module) -> dict[str, jax.Array]:
    """Returns parameters that need no compiling; what `initialize` makes has tests of its own."""
    return {
        path: jnp.asarray(
            np.random.default_rng(list(path.encode())).normal(size=spec.shape)
        ).astype(spec.dtype)
        for path, spec in parameter_specs(model).items()
    }


X_BE = jax.random.normal(jax.random.key(7), (8, 4))
KEY = jax.random.key(0)
