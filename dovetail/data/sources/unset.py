"""The corpus of experiments that have no data of their own: the user names one."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.config import Component, ConfigError
from dovetail.data.interfaces import Document


class UnsetCorpus(Component):
    """No corpus yet. The experiment can be planned and compiled, but not trained."""

    is_unset = True

    @property
    def name(self) -> str:
        """A short name."""
        return "unset"

    def fingerprint(self) -> str:
        """Raises a ConfigError: there is no data."""
        raise self._error()

    def documents(self) -> Iterator[Document]:
        """Raises a ConfigError: there is no data."""
        raise self._error()

    def _error(self) -> ConfigError:
        where = self.config.locate() or "input.corpus"
        return ConfigError(
            f"{where}: this experiment has no data of its own. Name yours, a file, a folder or a "
            f"URL: --data PATH, which is short for {where}=Files {where}.files=PATH; in Python "
            'experiment.data("PATH"). docs/data.md has examples.'
        )
