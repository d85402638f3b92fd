"""A fault policy from outside: a loss spike is rolled back, and its batch is never used again."""

from dovetail.config import Component, modifier
from dovetail.runtime import Continue, NonFiniteStep, RollBack, Stop


class LeaveOutSpikes(Component):
    """Rolls back when the loss is `factor` times its running mean, at most `limit` times."""

    class Config(Component.Config["LeaveOutSpikes"]):
        factor: float = 2.0
        limit: int = 10

    def __init__(self, config):
        super().__init__(config)
        self.factor, self.limit = config.factor, config.limit
        self.mean, self.count = None, 0

    def on_event(self, event):
        if isinstance(event, NonFiniteStep):
            return self._roll_back(event.message)
        if self.mean is not None and event.loss > self.factor * self.mean:
            return self._roll_back(f"Step {event.step}: the loss spiked to {event.loss:.3g}.")
        self.mean = event.loss if self.mean is None else 0.9 * self.mean + 0.1 * event.loss
        return Continue()

    def _roll_back(self, reason):
        self.count += 1
        return RollBack(reason) if self.count <= self.limit else Stop(reason)


@modifier("leave-out-spikes")
def leave_out_spikes(config, factor: float = 2.0, limit: int = 10):
    """Rolls back loss spikes, and skips their batches."""
    return config.set(faults=LeaveOutSpikes.Config(factor=factor, limit=limit))
