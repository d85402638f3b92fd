"""Counting the bad records of a corpus, and refusing a corpus that has too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.config import ConfigError
from dovetail.data.interfaces import BadRecord, Corpus
from dovetail.utils import plural

_EXAMPLES = 3
_PROBLEMS = 10


@dataclass
class BadRecordCount:
    """How many records of a corpus, or of a shard of it, were read, and how many were bad."""

    allowed: float = 0.0
    """The share of bad records that are skipped."""
    records: int = 0
    """All records, the bad ones included."""
    bad: int = 0
    examples: list[BadRecord] = field(default_factory=list)
    """The first of the bad ones."""
    problems: Counter[str] = field(default_factory=Counter)
    """How many of the bad ones have each problem."""

    @classmethod
    def of(cls, corpus: Corpus) -> BadRecordCount:
        """Returns a new count with the share that a corpus allows: its `max_bad`, or 0."""
        return cls(allowed=getattr(corpus, "max_bad", 0.0))

    def add(self, record: object) -> None:
        """Counts a document or a bad record."""
        self.records += 1
        if isinstance(record, BadRecord):
            self.bad += 1
            self.problems[record.problem] += 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(record)

    def merge(self, later: BadRecordCount) -> None:
        """Adds the count of a later shard."""
        self.records += later.records
        self.bad += later.bad
        self.examples = (self.examples + later.examples)[:_EXAMPLES]
        self.problems.update(later.problems)

    def as_json(self) -> dict[str, Any]:
        """Returns the bad ones as JSON values."""
        return {
            "bad": self.bad,
            "problems": dict(self.problems),
            "examples": [(each.name, each.problem) for each in self.examples],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], records: int) -> BadRecordCount:
        """Reads what `as_json` wrote, of so many records."""
        examples = [BadRecord(*each) for each in values["examples"]]
        return cls(0.0, records, values["bad"], examples, Counter(values["problems"]))

    def main_problems(self) -> dict[str, int]:
        """Returns the most frequent problems with their counts, and the sum of the others."""
        main = dict(self.problems.most_common(_PROBLEMS))
        others = self.problems.total() - sum(main.values())
        return {**main, "other problems": others} if others else main

    @property
    def is_hopeless(self) -> bool:
        """Whether no further record can help, because none may be bad."""
        return self.bad > 0 and self.allowed == 0

    def check(self, corpus: str) -> None:
        """Raises a ConfigError with examples if more records were bad than is allowed."""
        if self.bad > self.allowed * self.records:
            raise self.error(corpus)

    def error(self, corpus: str) -> ConfigError:
        """Returns the error for too many bad records."""
        share = self.bad / max(self.records, 1)
        examples = "".join(f"\n  {each.name}: {each.problem}" for each in self.examples)
        return ConfigError(
            f"corpus {corpus}: {self.bad:,} of {plural(self.records, 'record')} "
            f"{'is' if self.bad == 1 else 'are'} bad, and max_bad={self.allowed:g} allows "
            f"{int(self.allowed * self.records):,}.{examples}\n"
            "Repair the files, leave them out with exclude=..., or set max_bad to the share of bad "
            f"records that may be skipped (found so far: {share:.2g})."
        )
