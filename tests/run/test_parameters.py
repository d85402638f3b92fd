"""The parameters of a loaded run are sharded by the rules that it was trained with."""

import jax
from jax.sharding import PartitionSpec

from dovetail.module import ConstantInitializer, ParameterSpec
from dovetail.parallel import AxisRules, MeshLayout, Placement
from dovetail.run.parameters import _structs


def test_a_rule_that_names_a_parameter_is_followed():
    spec = ParameterSpec((16, 8), ("embed", "mlp"), ConstantInitializer.Config().build())
    mesh = MeshLayout.Config(fsdp=8).build().mesh(jax.devices())
    plain = Placement(mesh, AxisRules.Config().build())
    by_path = AxisRules.Config(parameters={"layer/up": (None, "fsdp")}).build()
    for placement, expected in (
        (plain, PartitionSpec("fsdp", None)),
        (Placement(mesh, by_path), PartitionSpec(None, "fsdp")),
    ):
        (struct,) = _structs({"layer/up": spec}, placement).values()
        wanted = jax.sharding.NamedSharding(mesh, expected)
        assert struct.sharding.is_equivalent_to(wanted, 2), struct.sharding
