"""The optimizer's state in the host's memory: `--with offload-optimizer`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("offload-optimizer", kind="memory")
def offloaded_optimizer(config: Any) -> Any:
    """The optimizer's state lies in the host's memory, and is fetched for the update."""
    from dovetail.parallel import HostMemory

    config.learner.optimizer_memory = HostMemory.Config()
    return config
