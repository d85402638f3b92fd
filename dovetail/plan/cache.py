"""What compilers have said, kept among the user's caches: asked again, it is there at once.

An entry is known by the config, the machine, the versions of JAX and of the compiler, and Dovetail's
own sources. So an interrupted search goes on where it was, and a change of anything that could
change the answer asks anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import to_text
from dovetail.hardware import user_cache_folder, write_whole
from dovetail.plan.plan import Exchange, Memory, Plan
from dovetail.plan.timing import Timing

if TYPE_CHECKING:
    from dovetail.targets import Machine
    from dovetail.trainer import Trainer

_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")


class PlanCache:
    """A folder of compiled plans."""

    def __init__(self, folder: Path | None = None) -> None:
        """Takes the folder; None means `plans` in Dovetail's folder among the user's caches."""
        self.folder = folder or user_cache_folder() / "plans"

    def find(self, config: Trainer.Config, machine: Machine, rough: Plan) -> Plan | None:
        """Returns what is known of a config on a machine; None where nothing is."""
        try:
            kept = json.loads(self._path(config, machine).read_text(encoding="utf-8"))
            return replace(
                rough,
                source=kept["source"],
                memory=Memory(**kept["memory"]),
                timing=Timing(**kept["timing"]),
                exchanges=tuple(Exchange(**each) for each in kept["exchanges"]),
                kernels=tuple(kept["kernels"]),
                notes=tuple(kept["notes"]),
                compile_s=kept["compile_s"],
                refusal=kept["refusal"],
            )
        except (OSError, ValueError, KeyError, TypeError):  # not there, or not whole
            return None

    def keep(self, config: Trainer.Config, machine: Machine, plan: Plan) -> None:
        """Keeps a compiled plan; a folder that cannot be written is no reason to stop."""
        contents: dict[str, Any] = {
            "source": plan.source,
            "memory": vars(plan.memory),
            "timing": vars(plan.timing),
            "exchanges": [vars(each) for each in plan.exchanges],
            "kernels": list(plan.kernels),
            "notes": list(plan.notes),
            "compile_s": plan.compile_s,
            "refusal": plan.refusal,
        }
        with contextlib.suppress(OSError):
            path = self._path(config, machine)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(contents, indent=1))

    def _path(self, config: Trainer.Config, machine: Machine) -> Path:
        identity = "\n".join([to_text(config), machine.name, _versions(), _sources()])
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


@functools.cache
def _versions() -> str:
    found = []
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return ", ".join(found)


@functools.cache
def _sources() -> str:
    """Returns a digest of Dovetail's own code."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
