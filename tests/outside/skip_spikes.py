"""A fault policy from outside: a loss spike is rolled back, and its batch is never used again."""

from dovetail.features import feature
from dovetail.runtime import Continue, RollBack, Stop, StopOnFaults


class LeaveOutSpikes(StopOnFaults):
    """Rolls back when the loss is `factor` times its running mean, at most `limit` times."""

    class Config(StopOnFaults.Config):
        factor: float = 2.0
        limit: int = 10

    def __init__(self, config):
        super().__init__(config)
        self.factor, self.limit = config.factor, config.limit
        self.mean, self.count = None, 0

    def on_step_end(self, event):
        if self.mean is not None and event.loss > self.factor * self.mean:
            return self._roll_back(f"Step {event.step}: the loss spiked to {event.loss:.3g}.")
        self.mean = event.loss if self.mean is None else 0.9 * self.mean + 0.1 * event.loss
        return Continue()

    def on_non_finite_step(self, event):
        return self._roll_back(event.message)

    def _roll_back(self, reason):
        self.count += 1
        return RollBack(reason) if self.count <= self.limit else Stop(reason)


@feature("leave-out-spikes", kind="faults")
def leave_out_spikes(config, factor: float = 2.0, limit: int = 10):
    """Rolls back loss spikes, and skips their batches."""
    return config.set(faults=LeaveOutSpikes.Config(factor=factor, limit=limit))
