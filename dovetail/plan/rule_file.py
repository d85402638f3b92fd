"""What a search has found, written as a target's rule: a small Python file of the user's own."""

from __future__ import annotations

import re

from dovetail.plan.candidates import Candidate
from dovetail.targets import Machine


def rule_text(name: str, machine: Machine, candidate: Candidate) -> str:
    """Returns the file: `--import` it, and `--target` takes this rule before ours."""
    sizes = ", ".join(f"{axis}={size}" for axis, size in candidate.sizes().items())
    modifiers = [f"    config = apply_modifier(config, {text!r})" for text in candidate.modifiers()]
    uses = "from dovetail.config import apply_modifier\n" if modifiers else ""
    function = re.sub(r"\W", "_", name)
    return "\n".join(
        [
            f'"""Found by `dovetail plan {name} --target {machine.name} --search`."""',
            "",
            f"{uses}from dovetail.targets import target_rule",
            "",
            "",
            f'@target_rule("{name}-on-{machine.kind}", "{machine.kind}")',
            f"def {function}(config, machine):",
            f'    """For every experiment on {machine.kind}: {candidate}."""',
            "    from dovetail.parallel import MeshLayout",
            "",
            f"    config.mesh = MeshLayout.Config({sizes})",
            *modifiers,
            "    return config",
            "",
        ]
    )
