"""Linear scaling in config.json."""

from dovetail.layers.positions.linear_scaling import LinearScaling
from dovetail.models.rotary.format import ScalingFormat, register_scaling, rotary_number

register_scaling(
    ScalingFormat(
        rope_type="linear",
        part=LinearScaling.Config,
        read=lambda given, hub: LinearScaling.Config(factor=rotary_number(given, "factor")),
        write=lambda scaling: {"factor": scaling.factor},
    )
)
