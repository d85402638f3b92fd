"""Pipeline parallelism: devices hold different layers, and microbatches go from stage to stage.

The layers of the longest stack are sharded over the mesh axis `pipeline`; everything else is
replicated over it. Stages send each other only the activation between them, and its gradient.
"""

from dovetail.learner.pipeline.gpipe import GPipe
from dovetail.learner.pipeline.one_forward_one_backward import OneForwardOneBackward

__all__ = ["GPipe", "OneForwardOneBackward"]
