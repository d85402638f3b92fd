"""The pieces of a corpus: what one process prepares at a time, and what a restart skips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.data.interfaces import (
    BadRecord,
    Corpus,
    CorpusShard,
    Document,
    HasEncoder,
    ShardedCorpus,
)

# Shards are joined up to this size: a kill loses little work, and there are few files.
_PIECE_BYTES = 8 * 2**20


@dataclass(frozen=True)
class CorpusPiece:
    """Consecutive shards of a corpus."""

    number: int
    shards: tuple[CorpusShard, ...]

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        return sum(shard.size for shard in self.shards)

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {"number": self.number, "shards": [asdict(shard) for shard in self.shards]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CorpusPiece:
        """Reads what `as_json` wrote."""
        return cls(values["number"], tuple(CorpusShard(**shard) for shard in values["shards"]))


class WholeCorpus:
    """A corpus without shards of its own, as a single one."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    @property
    def name(self) -> str:
        """The name of the corpus."""
        return self.corpus.name

    def fingerprint(self) -> str:
        """Returns that of the corpus."""
        return self.corpus.fingerprint()

    def documents(self) -> Iterator[Document]:
        """Yields those of the corpus."""
        return self.corpus.documents()

    def shards(self) -> Sequence[CorpusShard]:
        """Returns one shard."""
        return [CorpusShard(self.name)]

    def read(self, shard: CorpusShard) -> Iterator[Document | BadRecord]:
        """Yields all documents."""
        yield from self.corpus.documents()


def with_shards(corpus: Corpus) -> ShardedCorpus:
    """Returns the corpus itself if it has shards, or as a single shard."""
    return corpus if isinstance(corpus, ShardedCorpus) else WholeCorpus(corpus)


def with_encoder(corpus: Corpus) -> HasEncoder | None:
    """Returns the corpus if it encodes its documents itself, else None."""
    found = corpus.corpus if isinstance(corpus, WholeCorpus) else corpus
    return found if isinstance(found, HasEncoder) else None


def pieces_of(corpus: ShardedCorpus) -> list[CorpusPiece]:
    """Joins consecutive shards. The pieces depend on the corpus alone, so a restart finds them."""
    pieces: list[CorpusPiece] = []
    joined: list[CorpusShard] = []
    for shard in corpus.shards():
        if joined and sum(each.size for each in joined) + shard.size > _PIECE_BYTES:
            pieces.append(CorpusPiece(len(pieces), tuple(joined)))
            joined = []
        joined.append(shard)
    return [*pieces, CorpusPiece(len(pieces), tuple(joined))] if joined else pieces


def documents_of(corpus: ShardedCorpus, piece: CorpusPiece) -> Iterator[Document | BadRecord]:
    """Yields the documents of a piece that are not empty, and its bad records."""
    for shard in piece.shards:
        for found in corpus.read(shard):
            if isinstance(found, BadRecord) or found.text or found.ids is not None:
                yield found
