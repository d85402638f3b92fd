"""Rules: logical axes to mesh axes, each at most once an array; errors say what divides."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from dovetail.config import ConfigError, from_text, to_text
from dovetail.parallel import (
    AxisRules,
    MeshLayout,
    Placement,
    capture_activations,
    constrain,
    current_placement,
    record_activation,
    use_placement,
)


@pytest.fixture
def mesh() -> Mesh:
    return MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()


@pytest.fixture
def placement(mesh: Mesh) -> Placement:
    return Placement(mesh, AxisRules.Config().build())


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (("embed", "heads"), PartitionSpec(("fsdp",), ("model",))),
        (("layers", "embed", "mlp"), PartitionSpec(None, ("fsdp",), ("model",))),
        (("batch", "sequence", "embed"), PartitionSpec(("data", "fsdp"))),
        (("batch", "sequence", "heads", None), PartitionSpec(("data", "fsdp"), None, ("model",))),
        (("unknown", None), PartitionSpec()),
        (("mlp", "vocab"), PartitionSpec(("model",))),
        ((), PartitionSpec()),
    ],
)
def test_partition(
    placement: Placement, axes: tuple[str | None, ...], expected: PartitionSpec
) -> None:
    assert placement.rules.partition_spec(axes, placement.mesh) == expected


def test_a_mesh_without_some_axes_is_fine() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rules = AxisRules.Config().build()
    assert rules.partition_spec(("batch", "embed"), mesh) == PartitionSpec(("data",))


def test_rules_survive_text() -> None:
    config = AxisRules.Config(rules={"batch": ("data",), "mlp": ("model", "expert")})
    assert from_text(to_text(config)) == config


def test_an_unknown_mesh_axis() -> None:
    with pytest.raises(ConfigError) as caught:
        AxisRules.Config(rules={"mlp": ("modle",)}).build()
    assert str(caught.value) == ("rules.mlp: there is no mesh axis 'modle'. Did you mean 'model'?")


def test_an_axis_that_does_not_divide_names_parameter_and_remedies(placement: Placement) -> None:
    with pytest.raises(ConfigError) as caught:
        placement.sharding(("layers", "embed", "mlp"), (3, 8, 13), "decoder/stack/up/weight")
    assert str(caught.value) == (
        "decoder/stack/up/weight: axis 2 ('mlp') has size 13, which does not divide into 2 shards "
        "(mesh model). A size of 12 or 14 would divide; so would a mesh of 1 there."
    )


def test_an_axis_over_two_mesh_axes_counts_both(placement: Placement) -> None:
    with pytest.raises(ConfigError) as caught:
        placement.sharding(("batch", "sequence"), (6, 5), "batch/tokens")
    assert str(caught.value) == (
        "batch/tokens: axis 0 ('batch') has size 6, which does not divide into 4 shards "
        "(mesh data x fsdp). A size of 4 or 8 would divide; so would a mesh of 3 or 2 or 1 there."
    )


def test_a_size_smaller_than_its_shards_is_not_advised_to_be_zero(placement: Placement) -> None:
    with pytest.raises(ConfigError, match=r"A size of 4 would divide; so would a mesh of 3 or 1"):
        placement.sharding(("batch",), (3,))


def test_constrain_shards_an_activation(placement: Placement) -> None:
    def double(x: jax.Array) -> jax.Array:
        with use_placement(placement):
            return constrain(2 * x, "batch", "sequence", "mlp")

    doubled = jax.jit(double)(jnp.ones((4, 3, 6)))
    assert doubled.sharding.is_equivalent_to(
        placement.sharding(("batch", "sequence", "mlp")), doubled.ndim
    )
    np.testing.assert_array_equal(doubled, 2.0)


def test_constrain_does_nothing_without_a_mesh(placement: Placement) -> None:
    x = jnp.ones((3, 5))
    assert constrain(x, "batch", "embed") is x
    with use_placement(placement):
        assert current_placement() is placement
    assert current_placement() is None
    single = Placement(MeshLayout.Config().build().mesh(jax.devices()[:1]), placement.rules)
    with use_placement(single):
        assert constrain(x, "batch", "embed") is x


def test_constrain_checks_the_number_of_axes_even_without_a_mesh() -> None:
    with pytest.raises(ValueError, match=r"2 axes in shape \(2, 2\), but constraint names"):
        constrain(jnp.ones((2, 2)), "batch")


def test_constrain_names_an_activation_that_does_not_divide(placement: Placement) -> None:
    with use_placement(placement), pytest.raises(ConfigError) as caught:
        constrain(jnp.ones((4, 2, 3, 8)), "batch", "sequence", "kv_heads", None)
    assert str(caught.value) == (
        "activation (batch, sequence, kv_heads, None): axis 2 ('kv_heads') has size 3, which does "
        "not divide into 2 shards (mesh model). A size of 2 or 4 would divide; so would a mesh of "
        "1 there."
    )


def test_an_abstract_mesh_shards_alike(mesh: Mesh) -> None:
    rules = AxisRules.Config().build()
    abstract = MeshLayout.Config(data=2, fsdp=2, model=2).build().abstract_mesh(8)
    axes, shape = ("embed", "heads"), (16, 32)
    here, elsewhere = (rules.sharding(axes, each, shape) for each in (mesh, abstract))
    assert here.spec == elsewhere.spec
    assert here.shard_shape(shape) == elsewhere.shard_shape(shape) == (8, 16)
    huge = MeshLayout.Config(data=-1, fsdp=512).build().abstract_mesh(8192)
    assert (huge.shape["data"], huge.size) == (16, 8192)
    with pytest.raises(ConfigError, match=r"p/w: axis 0 \('embed'\) has size 100.*512 shards"):
        rules.sharding(axes, huge, (100, 32), name="p/w")


def test_nothing_runs_on_an_abstract_mesh() -> None:
    layout, rules = MeshLayout.Config().build(), AxisRules.Config().build()
    with pytest.raises(TypeError, match="no device to run on"):
        _ = Placement(layout.abstract_mesh(4), rules).device_mesh
    mesh = layout.mesh()
    assert Placement(mesh, rules).device_mesh is mesh


def test_activations_are_captured(placement: Placement) -> None:
    def step(x: jax.Array) -> jax.Array:
        record_activation(x, "batch", None)
        return constrain(x * 2, "batch", "embed")

    x = jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)
    with use_placement(placement), capture_activations() as found:
        jax.eval_shape(step, x)
    assert [activation.axes for activation in found] == [("batch", None), ("batch", "embed")]
    assert {(each.path, each.shape, each.dtype) for each in found} == {("", (8, 4), "bfloat16")}
    jax.eval_shape(step, x)
    assert len(found) == 2, "nothing is captured after the block"


WEIGHT = "decoder/embedding/weight"


def test_a_rule_may_name_one_parameter_by_path(mesh: Mesh) -> None:
    rules = AxisRules.Config(parameters={"*/weight": (("fsdp", "data"), None)}).build()
    axes = rules.for_parameter(WEIGHT, ("vocab", "embed"))
    assert axes == ("vocab", "embed")
    assert rules.partition_spec(axes, mesh) == PartitionSpec(("fsdp", "data"))
    assert rules.sharding(axes, mesh, (8, 6)).shard_shape((8, 6)) == (2, 6)
    other = rules.for_parameter("decoder/norm/scale", ("embed",))
    assert rules.partition_spec(other, mesh) == PartitionSpec(("fsdp",))


def test_optimizer_state_with_fewer_axes_follows_by_name(mesh: Mesh) -> None:
    rules = AxisRules.Config(parameters={WEIGHT: ("data", "model")}).build()
    rows = rules.for_parameter(WEIGHT, ("vocab", "embed"), ("vocab",))
    columns = rules.for_parameter(WEIGHT, ("vocab", "embed"), (None, "embed"))
    assert rules.partition_spec(rows, mesh) == PartitionSpec(("data",))
    assert rules.partition_spec(columns, mesh) == PartitionSpec(None, ("model",))


def test_a_path_beats_a_pattern(mesh: Mesh) -> None:
    config = AxisRules.Config(parameters={"*": ("data",), "scale": ("model",)})
    rules = config.build()
    rules.check_parameters({"scale": ("embed",), "bias": ("embed",)})
    found = [rules.partition_spec(rules.for_parameter(p, ("embed",)), mesh) for p in "ab"]
    assert found == [PartitionSpec(("data",))] * 2
    scale = rules.for_parameter("scale", ("embed",))
    assert rules.partition_spec(scale, mesh) == PartitionSpec(("model",))
    assert from_text(to_text(config)) == config


def test_a_named_parameter_that_does_not_divide_is_the_usual_error(mesh: Mesh) -> None:
    rules = AxisRules.Config(parameters={WEIGHT: ("model", None)}).build()
    axes = rules.for_parameter(WEIGHT, ("vocab", "embed"))
    with pytest.raises(
        ConfigError, match=r"decoder/embedding/weight: axis 0 \('vocab'\) has size 7, which does"
    ):
        rules.sharding(axes, mesh, (7, 4), WEIGHT)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"decoder/embeding/weight": ("model", None)}, r"matches no parameter\. Did you mean"),
        ({WEIGHT: ("model",)}, r"has 1 axes, but decoder/embedding/weight has 2: \('vocab', 'emb"),
        ({"*": ("model", None), "d*": (None, None)}, r"both match decoder/embedding/weight"),
        ({WEIGHT: ("modle", None)}, r"there is no mesh axis 'modle'.*model"),
        ({WEIGHT: ("model", "model")}, r"the mesh axis 'model' can shard only one of the axes"),
    ],
)
def test_rules_by_path_that_cannot_be_meant_are_refused(parameters, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AxisRules.Config(parameters=parameters).build().check_parameters(
            {WEIGHT: ("vocab", "embed")}
        )


@pytest.mark.parametrize(
    ("axis", "near"),
    [("head", "heads"), ("embd", "embed"), ("experts", "expert"), ("vocabulary", "vocab")],
)
def test_a_misspelt_logical_axis_is_a_warning(axis: str, near: str) -> None:
    axes = {WEIGHT: ("rank", axis), "decoder/other": (axis,)}
    with pytest.warns(UserWarning, match=rf"{WEIGHT}.*{axis!r}.*Did you mean {near!r}\?") as found:
        AxisRules.Config().build().check_parameters(axes)
    assert len(found) == 1, "one for each axis"


def test_a_misspelt_rule_is_a_warning() -> None:
    config = AxisRules.Config()
    config.rules = config.rules | {"hedas": ("model",), "streams": ()}
    with pytest.warns(UserWarning, match=r"rules\.rules\.hedas.*Did you mean 'heads'") as found:
        config.build().check_parameters({WEIGHT: ("vocab", "embed")})
    assert len(found) == 1


def test_a_misspelt_axis_of_an_activation_is_a_warning(mesh: Mesh) -> None:
    placement = Placement(mesh, AxisRules.Config().build())
    warns = pytest.warns(UserWarning, match=r"the logical axis 'btach'.*Did you mean 'batch'")
    with use_placement(placement), warns:
        constrain(jax.numpy.ones((8, 4)), "btach", None)


def test_an_axis_that_has_a_rule_or_another_word_is_no_warning() -> None:
    config = AxisRules.Config()
    config.rules = config.rules | {"embd": ()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.build().check_parameters({WEIGHT: ("vocab", "embd", None, "layers", "streams")})
