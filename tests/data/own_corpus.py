"""A corpus of numbered texts, in a package that workers import."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from dovetail.config import Component, ConfigError
from dovetail.data.interfaces import BadRecord, CorpusShard, Document

_PER_SHARD = 100

readers: list[str] = []
"""What this process has read: `shard` for each."""


class NumberedTexts(Component):
    """A hundred documents in each shard."""

    class Config(Component.Config["NumberedTexts"]):
        shards: int = 20
        bad_every: int = 0
        max_bad: float = 0.0
        distinct: int = 0
        as_ids: bool = False
        offset: int = 0
        seconds_per_shard: float = 0.0
        dies_in_shard: int = -1
        fails_in_shard: int = -1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    @property
    def name(self) -> str:
        return "numbered"

    @property
    def max_bad(self) -> float:
        return self.config.max_bad

    def fingerprint(self) -> str:
        config = self.config
        return f"{config.shards}/{config.bad_every}/{config.distinct}/{config.as_ids}"

    def shards(self) -> Sequence[CorpusShard]:
        return [CorpusShard(f"shard-{n}", n, n + 1, 100 * 60) for n in range(self.config.shards)]

    def documents(self) -> Iterator[Document]:
        for shard in self.shards():
            for found in self.read(shard):
                if isinstance(found, Document):
                    yield found

    def read(self, shard: CorpusShard) -> Iterator[Document | BadRecord]:
        readers.append("shard")
        time.sleep(self.config.seconds_per_shard)
        if shard.start == self.config.dies_in_shard and "worker" in sys.argv[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        if shard.start == self.config.fails_in_shard:
            raise ConfigError(f"{shard.file} is unreadable.")
        for number in range(shard.start * _PER_SHARD, (shard.start + 1) * _PER_SHARD):
            if self.config.bad_every and number % self.config.bad_every == 0:
                yield BadRecord(f"numbered#{number}.bad", "no column 'text'")
            of = number % self.config.distinct if self.config.distinct else number
            text = f"document {of} says {of * of} and {of * 7919 % 1009} again and again, " * 3
            if self.config.as_ids:
                ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32) + self.config.offset
                yield Document(f"numbered#{number}", ids=ids)
            else:
                yield Document(f"numbered#{number}", text)
        print("a library prints this", file=sys.stdout)
