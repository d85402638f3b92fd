"""Pipeline schedules: the chunk and microbatch that each stage runs at each tick.

All devices tick together. At a tick a device runs one chunk of layers forward for one microbatch,
and one backward for another, and sends the results to its neighbours for the next tick. With S
stages, V repeats and M microbatches, the layers are cut into S x V chunks. Stage s holds the chunks
s, s + S, s + 2S, ..., so each microbatch goes V times around the ring of stages. These are
Megatron's virtual pipeline stages, and MaxText's circular repeats.

Microbatches go in groups of S. A stage runs all of a group through its first chunk, then all
through its second, and so on. So the microbatch that comes back after S ticks is always the next in
turn. The backward pass is the mirror image. It begins at the last chunk, at the tick at which the
first microbatch arrives there.

A 1F1B run has three phases: warmup (forward only, `warmup_ticks`), steady state (one forward and
one backward, until `forward_ticks`) and cooldown (backward only, until `ticks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.config import ConfigError


class Slot(NamedTuple):
    """A stage's work at a tick: one of its chunks, a microbatch; inactive in the bubble."""

    chunk: Any
    microbatch: Any
    is_active: Any


@dataclass(frozen=True)
class PipelineSchedule:
    """The schedule of a pipeline; it is interleaved if `repeats` is above 1."""

    stages: int
    microbatches: int
    repeats: int = 1

    def __post_init__(self) -> None:
        """Checks that an interleaved schedule has complete groups."""
        if self.repeats > 1 and self.microbatches % self.stages:
            raise ConfigError(
                f"microbatches: {self.microbatches} do not divide into groups of {self.stages}, as "
                "many as the pipeline has stages, which repeats above 1 need."
            )

    @property
    def slots(self) -> int:
        """The number of active forward slots of each stage; as many are backward."""
        return self.microbatches * self.repeats

    @property
    def warmup_ticks(self) -> int:
        """The number of ticks before the last stage's first backward slot."""
        return self.stages * self.repeats - 1

    @property
    def forward_ticks(self) -> int:
        """The number of ticks until all forward slots are done."""
        return self.slots + self.stages - 1

    @property
    def ticks(self) -> int:
        """The number of ticks until all forward and backward slots are done."""
        return self.slots + self.warmup_ticks + self.stages - 1

    @property
    def max_in_flight(self) -> int:
        """The most microbatches that are between forward and backward of one chunk."""
        most = 2 * self.stages if self.repeats == 1 else 3 * self.stages
        return min(most, self.microbatches)

    @property
    def bubble(self) -> float:
        """The fraction of ticks at which a stage is idle."""
        return 1 - self.slots / self.ticks

    def forward(self, tick: Any, stage: Any) -> Slot:
        """Returns a stage's forward slot at a tick."""
        return self._slot(tick - stage, backward=False)

    def backward(self, tick: Any, stage: Any) -> Slot:
        """Returns a stage's backward slot at a tick."""
        return self._slot(tick - self.first_backward_tick(stage), backward=True)

    def first_backward_tick(self, stage: Any) -> Any:
        """Returns the tick of a stage's first backward slot."""
        return self.warmup_ticks + self.stages - 1 - stage

    def _slot(self, number: Any, backward: bool) -> Slot:
        is_active = (number >= 0) & (number < self.slots)
        if self.repeats == 1:
            return Slot(0 * number, number, is_active)
        per_group = self.stages * self.repeats
        group, within = number // per_group, number % per_group
        chunk = within // self.stages
        chunk = self.repeats - 1 - chunk if backward else chunk
        return Slot(chunk, group * self.stages + within % self.stages, is_active)
