"""Errors name the module that was running, and say what to do."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.config import ConfigError
from dovetail.module import Module, functional, repeated, scan, vmap
from tests.module.example_modules import X_BE, Chatty, Dense, Host, Sequence, Stack, weights


class Breaks(Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ jnp.ones((3, 3))


def notes_of(model: Module, x=X_BE) -> list[str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whichever; the notes are the test
        functional(model, {}, x)
    return [note for note in caught.value.__notes__ if "module" in note]


def test_an_error_names_only_the_innermost_module() -> None:
    inner = Sequence.Config(parts={"b": Breaks.Config()})
    model = Sequence.Config(parts={"a": inner}).build()
    assert notes_of(model) == ["in the module parts/a/parts/b (Breaks)"]
    assert notes_of(Breaks.Config().build()) == ["in the module (the root) (Breaks)"]


def test_an_error_inside_a_scan_names_the_layer() -> None:
    model = Sequence.Config(parts={"stack": Stack.Config(layer=Breaks.Config())}).build()
    assert notes_of(model) == ["in the module parts/stack/layer (Breaks)"]


def test_a_parameter_that_was_not_given_names_the_nearest() -> None:
    model = Stack.Config().build()
    params = weights(model)
    params["layer/weights"] = params.pop("layer/weight")
    with pytest.raises(ConfigError, match=r"'layer/weight' was not given.*mean 'layer/weights'"):
        functional(model, params, X_BE)


def test_reading_outside_of_functional() -> None:
    model = Dense.Config().build()
    with pytest.raises(RuntimeError, match=r"Reading Dense\.weight works only .* functional"):
        _ = model.weight
    with pytest.raises(RuntimeError, match=r"random key works only while the model runs"):
        model.random_key()
    with pytest.raises(RuntimeError, match="add_loss works only while the model runs"):
        model.add_loss("l", 1.0, 1.0)


def test_an_unknown_attribute_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"Dense has no 'weigth'\. Did you mean 'weight'"):
        _ = Dense.Config().build().weigth


def test_a_module_that_is_no_part_of_the_model() -> None:
    stranger = Chatty.Config().build()

    def how(model, x):
        return stranger(x)

    with pytest.raises(RuntimeError, match="This Chatty is not in the tree of the running Host"):
        functional(Host.Config().build(), {}, (how, X_BE))


def test_the_same_module_in_two_places() -> None:
    class Doubled(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.a = Dense.Config().build()
            self.b = [self.a]

    with pytest.raises(ValueError, match=r"is at 'a' and at 'b/0'.*Shared\.Config"):
        functional(Doubled.Config().build(), {}, X_BE)


@pytest.mark.parametrize("transformation", [scan, vmap])
def test_forgetting_to_declare_a_repeated_child(transformation) -> None:
    def how(model, x):
        return transformation(model.one, lambda *args: args, x)

    with pytest.raises(
        ValueError, match=r"This Chatty is not a repeated child of Host.*repeated\("
    ):
        functional(Host.Config().build(), {}, (how, X_BE))


def test_calling_a_repeated_child_as_if_it_were_one() -> None:
    def how(model, x):
        return model.many(x)

    model = Host.Config(child=Sequence.Config(parts={"a": Dense.Config()})).build()
    with pytest.raises(RuntimeError, match=r"'many' is repeated 3 times.*scan.*vmap"):
        functional(model, weights(model), (how, X_BE))


def test_a_parent_may_read_all_layers_at_once() -> None:
    def how(model, x):
        return model.many.weight

    model = Host.Config(child=Dense.Config()).build()
    assert functional(model, weights(model), (how, X_BE))[0].shape == (3, 4, 4)


def test_parameters_of_another_depth() -> None:
    params = weights(Stack.Config(num_layers=2).build())
    with pytest.raises(ValueError, match=r"'layer/.*' .* repeated 3 times.*\(2, 4"):
        functional(Stack.Config(num_layers=3).build(), params, X_BE)


def test_repeating_nothing_or_twice() -> None:
    with pytest.raises(ConfigError, match="at least once, got 0"):
        repeated(Dense.Config().build(), 0)
    with pytest.raises(ConfigError, match="This Dense is repeated already"):
        repeated(repeated(Dense.Config().build(), 2), 2)


class Reads(Module):
    def __call__(self, batch: Any) -> Any:
        return batch.images + batch.images.no_such_method()


@dataclass(frozen=True)
class Words:
    tokens: jax.Array


@dataclass(frozen=True)
class Images:
    images: jax.Array


def test_reading_a_field_that_the_batch_lacks_names_both_and_the_reader() -> None:
    model = Sequence.Config(parts={"a": Reads.Config()}).build()
    with pytest.raises(ConfigError) as caught:
        functional(model, {}, Words(X_BE))
    assert str(caught.value) == (
        "model: Sequence reads `images` of a batch, but it got Words, which has tokens. Use an "
        "input whose batch has it, or another model."
    )
    assert notes_of(model, Words(X_BE)) == ["in the module parts/a (Reads)"]


def test_another_missing_attribute_is_not_blamed_on_the_batch() -> None:
    with pytest.raises(AttributeError, match="no_such_method"):
        functional(Reads.Config().build(), {}, Images(X_BE))
