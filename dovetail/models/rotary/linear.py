"""Linear scaling in config.json."""

from dovetail.layers.positions.linear_scaling import LinearScaling
from dovetail.models.rotary.format import ScalingFormat, register_scaling

register_scaling(
    ScalingFormat(
        rope_type="linear",
        part=LinearScaling.Config,
        read=lambda given, original: LinearScaling.Config(factor=float(given["factor"])),
        write=lambda scaling: {"factor": scaling.factor},
    )
)
