"""Goodput: the time of a run by class, over all its lives, and a simulator at scale. No JAX.

`log.py` records, `account.py` reads, `report.py` shows, `simulate.py` predicts. Every second lies
in one class. Names are imported at first use, because a training run only records.
"""

from typing import TYPE_CHECKING

from dovetail.utils.lazy import lazy_names

if TYPE_CHECKING:
    from dovetail.runtime.goodput.account import Goodput, Span, goodput
    from dovetail.runtime.goodput.classes import CLASSES, RECORDED
    from dovetail.runtime.goodput.log import GoodputLog

_MODULES = {
    "dovetail.runtime.goodput.account": ("Goodput", "Span", "goodput"),
    "dovetail.runtime.goodput.classes": ("CLASSES", "RECORDED"),
    "dovetail.runtime.goodput.log": ("GoodputLog",),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)

__all__ = ["CLASSES", "RECORDED", "Goodput", "GoodputLog", "Span", "goodput"]
