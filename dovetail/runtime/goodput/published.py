"""Published goodput figures, and the scenarios that we simulate beside them.

The papers do not give every number of a scenario. `assumptions` lists ours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.runtime.goodput.simulate import (
    BYTEROBUST,
    RATES,
    Scenario,
    Simulation,
    Tier,
    first_order,
    simulate,
)
from dovetail.utils import format_duration, format_table

_LLAMA3_RATE = RATES["llama3"]


@dataclass(frozen=True)
class PublishedRow:
    """A published number, and a similar scenario."""

    name: str
    published: str
    scenario: Scenario
    assumptions: str


PUBLISHED = (
    PublishedRow(
        "Llama 3 405B (arXiv 2407.21783)",
        "above 90%",
        Scenario(
            rate=_LLAMA3_RATE,
            detect=60.0,
            start=540.0,
            replacement=0.0,
            spares=0,
            local=None,
            durable=Tier(interval=600.0, stall=5.0, write=60.0, restore=60.0),
        ),
        "Published: 419 unexpected interruptions in 54 days on 2,048 hosts, and their kinds. Ours: "
        "one tier, a save every 10 min with a stall of 5 s, written in 1 min; 1 min to detect, "
        "10 min to restart on a host that is there.",
    ),
    PublishedRow(
        "ByteRobust (arXiv 2509.16293)",
        "97% on 9,600 GPUs",
        Scenario(
            hosts=1200,
            rate=_LLAMA3_RATE,
            job_failures_per_day=1.0,
            kinds=BYTEROBUST,
            detect=60.0,
            detect_hang=600.0,
            start=300.0,
            spare_start=120.0,
            local=Tier(interval=30.0, stall=0.2, write=30.0, restore=60.0),
        ),
        "Published: the kinds of failures, in-memory saves, warm standbys. Ours: the failure rate "
        "of Llama 3 and one failure of software or change of code per day; a save every 30 s with "
        "a stall of 0.2 s; 1 min to detect (10 min for a hang), 3 min to restart with a standby.",
    ),
    PublishedRow(
        "AXLearn (arXiv 2507.05411)",
        "21 min lost per failure",
        Scenario(
            hosts=8192,
            rate=_LLAMA3_RATE,
            detect=60.0,
            start=780.0,
            replacement=0.0,
            spares=0,
            local=None,
            durable=Tier(interval=600.0, stall=0.5, write=60.0, restore=60.0),
        ),
        "Published: 32,768 chips, here 8,192 hosts of 4. Ours: the failure rate of Llama 3; a save "
        "every 10 min, written in 1 min; 1 min to detect and 14 min to restart, which adds up to "
        "21 min where no failure strikes during recovery.",
    ),
    PublishedRow(
        "AXLearn's 21 min on 2,048 hosts",
        "",
        Scenario(
            rate=_LLAMA3_RATE,
            detect=60.0,
            start=780.0,
            replacement=0.0,
            spares=0,
            local=None,
            durable=Tier(interval=600.0, stall=0.5, write=60.0, restore=60.0),
        ),
        "The same in the Llama 3 regime.",
    ),
    PublishedRow(
        "two tiers, a replacement at once",
        "",
        Scenario(rate=_LLAMA3_RATE, spares=0, replacement=0.0),
        "The defaults of `dovetail goodput simulate`: local saves with a copy at a peer every 60 s "
        "with a stall of 0.3 s, written in 5 s; durable ones every 20 min; 2% of failures destroy "
        "the local tier; 15 s to detect (5 min for a hang), 2.5 min to restart.",
    ),
    PublishedRow(
        "two tiers, 10 min for a replacement",
        "",
        Scenario(rate=_LLAMA3_RATE, spares=0),
        "The same where another host comes after 10 min and there is no spare.",
    ),
    PublishedRow(
        "two tiers, 8 warm spares",
        "",
        Scenario(rate=_LLAMA3_RATE),
        "The same with spares on which a life starts in 45 s and restores in 30 s; a lost host is "
        "repaired after 4 h. The spares themselves (0.4% of the hosts) are not counted.",
    ),
    PublishedRow(
        "the same at the rate of RSC-1",
        "",
        Scenario(rate=RATES["rsc-1"]),
        "The same with the failures of Meta's cluster RSC-1, 6.50 per 1,000 host-days (arXiv "
        "2410.21680); their kinds are those of Llama 3.",
    ),
    PublishedRow(
        "the same at the rate of RSC-2",
        "",
        Scenario(rate=RATES["rsc-2"]),
        "The same with those of RSC-2, 2.34 per 1,000 host-days.",
    ),
)


@dataclass(frozen=True)
class PublishedComparison:
    """A published number beside the simulation of a similar scenario."""

    row: PublishedRow
    result: Simulation

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "name": self.row.name,
            "published": self.row.published,
            **self.result.facts(),
            "first_order": first_order(self.row.scenario),
            "assumptions": self.row.assumptions,
        }


def simulate_published(days: float = 54.0, seed: int = 0) -> list[PublishedComparison]:
    """Simulates all rows of `PUBLISHED`."""
    return [PublishedComparison(row, simulate(row.scenario, days, seed)) for row in PUBLISHED]


def published_report(compared: Sequence[PublishedComparison]) -> str:
    """Returns a table, and below it the assumptions of each row."""
    lines = [
        (
            f"{number}",
            each.row.name,
            f"{each.row.scenario.hosts:,}",
            each.row.published,
            f"{each.result.goodput:.1%}",
            f"{first_order(each.row.scenario):.1%}",
            format_duration(each.result.lost_per_failure),
        )
        for number, each in enumerate(compared, 1)
    ]
    header = ("", "run", "hosts", "published", "simulated", "formula", "lost per failure")
    assumptions = [
        textwrap.fill(f"{number}. {each.row.assumptions}", 96, subsequent_indent="   ")
        for number, each in enumerate(compared, 1)
    ]
    return "\n\n".join(
        [format_table(lines, header=header, align="><><>>>"), "\n".join(assumptions)]
    )
