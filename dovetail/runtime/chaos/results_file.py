"""A file with the results of trials, so that an interrupted series of trials can continue.

Each line is one result as JSON, with the version of the code. Results of another version say
nothing about this one, so a file with both is refused. A failed trial stays in the file, because a
successful repetition would hide a rare failure.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from dovetail.config import ConfigError
from dovetail.runtime.chaos.judging import Delays, Result
from dovetail.runtime.chaos.trials import Trial
from dovetail.runtime.code_version import code_versions, package_versions


class ResultsFile:
    """The results of earlier and of new trials."""

    def __init__(self, file: Path) -> None:
        """Reads the file, if there is one.

        Raises:
            ConfigError: if a line is not a result, or is one of another version of the code.
        """
        self._file = file
        self._code = code_versions(["dovetail"]).get("dovetail") or package_versions()
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._results = [self._read(number, line) for number, line in enumerate(lines, 1)]

    def of(self, trials: Iterable[Trial]) -> list[Result]:
        """Returns the results of the given trials that are in the file."""
        wanted = set(trials)
        return [result for result in self._results if result.trial in wanted]

    def add(self, result: Result) -> None:
        """Appends a result."""
        line = json.dumps({"code": self._code, **dataclasses.asdict(result)})
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _read(self, number: int, line: str) -> Result:
        try:
            values = json.loads(line)
            code = values.pop("code")
            values |= {"trial": Trial(**values["trial"]), "delays": Delays(**values["delays"])}
            result = Result(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{self._file}: line {number} is not a result of `dovetail chaos` ({error}). "
                "Remove the line, or name another file."
            ) from error
        if code != self._code:
            raise ConfigError(
                f"{self._file}: line {number} was obtained with other code ({code}, now "
                f"{self._code}). Name another file."
            )
        return result
