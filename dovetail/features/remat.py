"""What layers keep for the backward pass: `--with remat:keep=dots`, or `keep=(tag,tag)`."""

from __future__ import annotations

from typing import Any

from dovetail.config import select
from dovetail.features.feature import feature

TAGS = ("attention_output", "feed_forward_gate")


@feature(
    "remat",
    kind="memory",
    files=("parallel/named_remat.py",),
    needs={"dovetail.layers:Stack": "there is no stack that could keep less of its layers"},
    trials=(
        *({"keep": (name,)} for name in ("nothing", "dots", "attention", "everything")),
        {"keep": TAGS},
    ),
)
def rematerialised(config: Any, keep: tuple[str, ...] = ("nothing",)) -> Any:
    """Keeps nothing, dots, attention, everything or a list of tags, and computes the rest again."""
    from dovetail.layers import Stack
    from dovetail.parallel.named_remat import named_remat

    return select(config, Stack).set(remat=named_remat(keep))
