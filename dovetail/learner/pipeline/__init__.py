"""Pipeline parallelism: devices hold different layers, and micro-batches go from one to the next.

The layers of the longest stack are split over the mesh axis `pipeline`; everything else is on every
device. What a part sends on is all that goes between stages.
"""

from dovetail.learner.pipeline.gpipe import GPipe
from dovetail.learner.pipeline.one_forward_one_backward import OneForwardOneBackward

__all__ = ["GPipe", "OneForwardOneBackward"]
