"""How XLA learns that several devices share one CPU, so that none waits for ever for the others."""

from __future__ import annotations

import os

# Otherwise XLA starts collectives that do not depend on each other as soon as each is ready, which
# differs from device to device: half of them wait in one, half in another, and all for ever. Seen
# with experts on data x fsdp: four runs of four without this and none of five with it.
_IN_ONE_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"

# Many devices on few cores meet slowly at a collective; XLA would end the process after 40 seconds.
_PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=120",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
)

# A flag that XLA does not know ends the process. These were found in 0.8.0, 0.9.0, 0.10.2, 0.12.0.
_FIRST_UNTRIED = (0, 13)


def share_one_cpu() -> None:
    """Sets XLA's flags for several devices on this CPU, before JAX has started any.

    What the user has set comes last, so that it counts.
    """
    import jax

    if jax.__version_info__ >= _FIRST_UNTRIED:
        return
    theirs = os.environ.get("XLA_FLAGS", "").split()
    ours = [flag for flag in (_IN_ONE_ORDER, *_PATIENCE) if flag not in theirs]
    os.environ["XLA_FLAGS"] = " ".join([*ours, *theirs])
