"""Pipeline schedules: which part of which micro-batch each device runs at each tick.

All devices tick together. At a tick a device runs one part of the layers forward for one
micro-batch, and one backward for another; what it made goes to its neighbour for the next tick.
With S stages, V parts a device holds, and M micro-batches, the layers are cut into S x V parts, and
device s holds the parts s, s + S, s + 2S, ...: each micro-batch goes V times around.

Micro-batches go in groups of S. Within a group a device runs all of them through its first part,
then all through its second, and so on. So the micro-batch that comes back after S ticks is always
the one that is due. Backward is the same, the other way round, and begins at the last part at the
very tick at which the first micro-batch arrives there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.config import ConfigError


class Turn(NamedTuple):
    """What a device does at a tick: which of its parts, which micro-batch, and whether at all."""

    part: Any
    microbatch: Any
    is_due: Any


@dataclass(frozen=True)
class Rounds:
    """The schedule of a pipeline; V is `rounds`: 1 is plain, more is interleaved."""

    stages: int
    microbatches: int
    rounds: int = 1

    def __post_init__(self) -> None:
        """Checks that groups are whole where a micro-batch goes around more than once."""
        if self.rounds > 1 and self.microbatches % self.stages:
            raise ConfigError(
                f"microbatches: {self.microbatches} do not divide into groups of {self.stages}, as "
                "many as the pipeline has stages, which rounds above 1 need."
            )

    @property
    def turns(self) -> int:
        """How many parts each device runs forward, and as many backward."""
        return self.microbatches * self.rounds

    @property
    def forward_ticks(self) -> int:
        """How many ticks all forward turns take."""
        return self.turns + self.stages - 1

    @property
    def ticks(self) -> int:
        """How many ticks all forward and backward turns take."""
        return self.turns + self.lead + self.stages - 1

    @property
    def lead(self) -> int:
        """How many ticks the last device is ahead with its first turn backward."""
        return self.stages * self.rounds - 1

    @property
    def held(self) -> int:
        """How many micro-batches a part may have begun and not yet gone back through."""
        most = 2 * self.stages if self.rounds == 1 else 3 * self.stages
        return min(most, self.microbatches)

    @property
    def bubble(self) -> float:
        """The share of ticks at which a device has nothing to do."""
        return 1 - self.turns / self.ticks

    def forward(self, tick: Any, stage: Any) -> Turn:
        """Returns what a stage runs forward at a tick."""
        return self._turn(tick - stage, backward=False)

    def backward(self, tick: Any, stage: Any) -> Turn:
        """Returns what a stage runs backward at a tick."""
        return self._turn(tick - self.first_backward(stage), backward=True)

    def first_backward(self, stage: Any) -> Any:
        """Returns the tick of a stage's first turn backward."""
        return self.lead + self.stages - 1 - stage

    def _turn(self, number: Any, backward: bool) -> Turn:
        is_due = (number >= 0) & (number < self.turns)
        if self.rounds == 1:
            return Turn(0 * number, number, is_due)
        group, within = number // (self.stages * self.rounds), number % (self.stages * self.rounds)
        part = within // self.stages
        part = self.rounds - 1 - part if backward else part
        return Turn(part, group * self.stages + within % self.stages, is_due)
