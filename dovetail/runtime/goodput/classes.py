"""The classes of time. Each second of a run lies in exactly one."""

from __future__ import annotations

RECORDED = {
    "step": "step",
    "input": "input stall",
    "save": "save stall",
    "evaluate": "evaluation",
    "check": "step checks",
    "start": "start and end",
    "compile": "compile",
    "restore": "restore",
    "peers": "waiting for peers",
}
"""What a process records, with the names for people. `start` is everything that has no other."""

CLASSES = {**RECORDED, "rolled_back": "rolled back", "idle": "idle"}
"""All classes. The last two are only known afterwards: steps that were repeated, or that died
before they ended; and the time between lives."""
