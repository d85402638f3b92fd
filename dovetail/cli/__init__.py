"""The command line: one thin file a verb."""

from dovetail.cli.main import main

__all__ = ["main"]
