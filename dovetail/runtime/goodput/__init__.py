"""Goodput: where the seconds of a run went, over all its lives; and a simulator at scale. No JAX.

`log.py` records, `account.py` reads, `simulate.py` predicts. Every second lies in one class.
"""

from dovetail.runtime.goodput.account import Goodput, Span, goodput
from dovetail.runtime.goodput.classes import CLASSES, RECORDED
from dovetail.runtime.goodput.log import GoodputLog

__all__ = ["CLASSES", "RECORDED", "Goodput", "GoodputLog", "Span", "goodput"]
