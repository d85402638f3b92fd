"""What a search has found, written as a target's rule: a small Python file of the user's own."""

from __future__ import annotations

import re

from dovetail.plan.candidates import Candidate
from dovetail.targets import Machine


def rule_text(name: str, machine: Machine, candidate: Candidate) -> str:
    """Returns the file: `--import` it, and `--target` takes this rule before ours.

    A rule is for slices of a kind, however many are joined: `data` takes what is left.
    """
    sizes = tuple({**candidate.sizes(), "data": -1}.items())
    function = re.sub(r"\W", "_", name)
    return "\n".join(
        [
            f'"""Found by `dovetail plan {name} --target {machine.name} --search`."""',
            "",
            "from dovetail.targets import target_rule",
            "",
            "",
            f'@target_rule("{name}-on-{machine.kind}", "{machine.kind}")',
            f"def {function}(config, machine):",
            f'    """For every experiment on {machine.kind}: {candidate}."""',
            "    from dovetail.plan import Candidate",
            "",
            "    found = Candidate(",
            f"        mesh={sizes!r},",
            f"        keep={candidate.keep!r},",
            f"        microbatches={candidate.microbatches},",
            f"        offloads_optimizer={candidate.offloads_optimizer},",
            "    )",
            "    return found.apply(config)",
            "",
        ]
    )
