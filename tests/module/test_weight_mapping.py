"""Rules over specs: names, nested stacks, leading axes, joined tensors; transforms are exact."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.layers import Attention, Decoder, FeedForward, Pattern, Stack, TransformerBlock
from dovetail.module import (
    ConstantInitializer,
    ForeignTensor,
    Interleave,
    ParameterSpec,
    Split,
    Transpose,
    WeightRule,
    match_weights,
    parameter_specs,
)


def spec(*shape: int) -> ParameterSpec:
    return ParameterSpec(shape, (None,) * len(shape), ConstantInitializer.Config().build())


def stacked(shape: tuple[int, ...], *stacks: tuple[int, int]) -> ParameterSpec:
    """Adds stacks (count, depth), innermost first."""
    made = spec(*shape)
    for count, depth in stacks:
        made = made.stack(count, "layers", depth)
    return made


def round_trip(tensor: ForeignTensor, array: np.ndarray) -> None:
    for index, _ in tensor.elements():
        element = array[index]
        assert element.shape == tensor.element_shape
        np.testing.assert_array_equal(tensor.to_foreign(tensor.to_parameters(element)), element)


def test_layers_are_named_and_transposed() -> None:
    specs = {"stack/layer/up/weight": stacked((3, 5), (4, 2)), "norm/scale": spec(3)}
    rules = [
        WeightRule("h.{layer}.up.weight", "stack/*/up/weight", (Transpose(),)),
        WeightRule("norm.weight", "norm/scale"),
        WeightRule("norm.bias", "norm/bias"),
    ]
    tensors = match_weights(rules, specs)
    assert list(tensors) == [f"h.{n}.up.weight" for n in range(4)] + ["norm.weight"]
    third = tensors["h.2.up.weight"]
    assert third.shape == (5, 3)
    assert third.slices[0][0].index == (2,)
    array = np.arange(15).reshape(5, 3)
    np.testing.assert_array_equal(third.to_parameters(array)[0], array.T)


def test_layers_of_nested_stacks_are_counted_in_order() -> None:
    """Two blocks in a pattern, three times; and then a stack of two behind it."""
    block = TransformerBlock.Config(
        attention=Attention.Config(num_heads=1), feed_forward=FeedForward.Config(hidden=4)
    )
    pattern = Stack.Config(num_layers=3, layer=Pattern.Config(layers=(block, block)))
    tail = Stack.Config(num_layers=2, layer=block)
    both = Pattern.Config(layers=(pattern, tail))
    model = Decoder.Config(stack=both, width=2, vocab_size=3).build()
    specs = {p: s for p, s in parameter_specs(model).items() if p.endswith("up/weight")}
    tensors = match_weights([WeightRule("{layer}", "stack/*/feed_forward/up/weight")], specs)
    slices = [tensors[str(n)].slices[0][0] for n in range(8)]
    paths = [
        parameter_slice.path.removesuffix("/feed_forward/up/weight") for parameter_slice in slices
    ]
    even, odd, after = (
        "stack/layers/0/layer/layers/0",
        "stack/layers/0/layer/layers/1",
        "stack/layers/1/layer",
    )
    assert paths == [even, odd, even, odd, even, odd, after, after]
    assert [parameter_slice.index for parameter_slice in slices] == [
        (0,),
        (0,),
        (1,),
        (1,),
        (2,),
        (2,),
        (0,),
        (1,),
    ]


@pytest.mark.parametrize("step", [Split(-1), Interleave(-1), Split(0), Interleave(0)])
def test_joined_tensors_come_apart_and_together(step: Split | Interleave) -> None:
    specs = {"a": spec(4, 6), "b": spec(4, 6)}
    (tensor,) = match_weights([WeightRule("ab", ("a", "b"), (step,))], specs).values()
    theirs = np.arange(48).reshape(tensor.shape)
    first, second = tensor.to_parameters(theirs)
    wanted = {
        Split(-1): (theirs[:, :6], theirs[:, 6:]) if theirs.shape[1] == 12 else None,
        Interleave(-1): (theirs[:, ::2], theirs[:, 1::2]),
        Split(0): (theirs[:4], theirs[4:]),
        Interleave(0): (theirs[::2], theirs[1::2]),
    }[step]
    assert wanted is not None
    np.testing.assert_array_equal(first, wanted[0])
    np.testing.assert_array_equal(second, wanted[1])
    round_trip(tensor, theirs)


def test_a_split_has_pieces_of_our_sizes() -> None:
    specs = {"q": spec(3, 8), "k": spec(3, 4), "v": spec(3, 4)}
    rule = WeightRule("qkv", ("q", "k", "v"), (Split(0), Transpose()))
    (tensor,) = match_weights([rule], specs).values()
    assert tensor.shape == (16, 3)
    theirs = np.arange(48).reshape(16, 3)
    query, key, value = tensor.to_parameters(theirs)
    np.testing.assert_array_equal(query, theirs[:8].T)
    np.testing.assert_array_equal(key, theirs[8:12].T)
    np.testing.assert_array_equal(value, theirs[12:].T)
    round_trip(tensor, theirs)


def test_experts_by_name_or_as_a_leading_axis() -> None:
    specs = {"stack/layer/mlp/up/weight": stacked((2, 3), (4, 3), (2, 2))}
    path = "stack/*/mlp/{expert}/up/weight"
    named = match_weights([WeightRule("{layer}.experts.{expert}.up", path)], specs)
    assert len(named) == 8
    assert named["1.experts.3.up"].slices[0][0].index == (1, 3)
    together = match_weights([WeightRule("{layer}.up", path)], specs)
    assert {name: tensor.shape for name, tensor in together.items()} == {
        "0.up": (4, 2, 3),
        "1.up": (4, 2, 3),
    }
    indices = [(index, slices[0].index) for index, slices in together["1.up"].elements()]
    assert indices == [((n,), (1, n)) for n in range(4)]


def test_a_parameter_without_a_rule_is_refused_unless_it_is_optional() -> None:
    specs = {"a": spec(2), "router/bias": spec(3)}
    with pytest.raises(ConfigError, match="router/bias: no rule"):
        match_weights([WeightRule("a", "a")], specs)
    assert list(match_weights([WeightRule("a", "a")], specs, ["router/bias"])) == ["a"]


def test_a_parameter_with_two_rules_is_refused() -> None:
    with pytest.raises(ConfigError, match="Both x and y fill a"):
        match_weights([WeightRule("x", "a"), WeightRule("y", "a")], {"a": spec(2)})
    with pytest.raises(ConfigError, match="Two rules make the tensor x"):
        match_weights([WeightRule("x", "a"), WeightRule("x", "b")], {"a": spec(2), "b": spec(2)})


def test_rules_that_cannot_be_followed_are_refused_when_written() -> None:
    with pytest.raises(ValueError, match="Split or Interleave"):
        WeightRule("ab", ("a", "b"))
    with pytest.raises(ValueError, match="indices"):
        WeightRule("{layer}.a", "a")
    with pytest.raises(ValueError, match=r"one \* only"):
        WeightRule("{layer}.a", "a/*/b/*/c")


def test_a_joined_tensor_with_a_missing_piece_is_refused() -> None:
    with pytest.raises(ConfigError, match="joins parameters, some of which this model lacks"):
        match_weights([WeightRule("ab", ("a", "b"), (Split(0),))], {"a": spec(2)})
