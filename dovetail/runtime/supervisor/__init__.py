"""The supervisor: starts the workers of a run, and restarts them when they crash or hang.

It imports no JAX, so that nothing of what it watches can take it down.
"""

from dovetail.runtime.supervisor.supervisor import Supervisor, SupervisorSettings

__all__ = ["Supervisor", "SupervisorSettings"]
