"""The supervisor: starts the workers of a run, and restarts them when they crash or hang.

It imports no JAX, so that a failure in JAX cannot take it down. Workers import a module of this
package, too. Names are imported at first use, so that a worker does not import all modules.
"""

from typing import TYPE_CHECKING

from dovetail.utils.lazy import lazy_names

if TYPE_CHECKING:
    from dovetail.runtime.supervisor.supervisor import Supervisor, SupervisorSettings
    from dovetail.runtime.supervisor.watchdog import Limits

_MODULES = {
    "dovetail.runtime.supervisor.supervisor": ("Supervisor", "SupervisorSettings"),
    "dovetail.runtime.supervisor.watchdog": ("Limits",),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)

__all__ = ["Limits", "Supervisor", "SupervisorSettings"]
