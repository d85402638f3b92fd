"""An inspection as text: tables of statistics, rows decoded, and the documents of rows.

Decoded rows are segments, each with a kind, so that a terminal can colour them. As plain text,
brackets ⟦ ⟧ enclose the tokens without loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from dovetail.data.inspection.facts import (
    DataInspection,
    InspectedPiece,
    InspectedRow,
    InspectedSource,
    TextSpan,
)
from dovetail.data.interfaces import TRAIN
from dovetail.utils import format_bytes, format_count, format_table, plural

Kind = Literal["text", "masked", "special", "masked special", "border", "padding"]

_MAX_SPAN = 2000  # characters of a span that are shown
_MAX_WORDS = 60  # characters of a document in the table
_MAX_STAGES = 6  # columns of shares


class Segment(NamedTuple):
    """A text of one kind."""

    text: str
    kind: Kind


def overview(found: DataInspection) -> str:
    """Returns the statistics of the sources, as tables."""
    ratio = f"{found.bytes_per_token:.3g} bytes per token"
    lines = [
        f"{found.split} split: {found.vocabulary:,} tokens in the vocabulary, {ratio}",
        f"a batch has {plural(found.batch_size, 'row')} of {found.sequence_length:,} tokens",
    ]
    tables = [_sizes(found), _lengths(found)]
    if found.split == TRAIN:
        tables.append(_shares(found))
    return "\n\n".join(["\n".join(lines), *tables])


def samples(found: DataInspection) -> list[Segment]:
    """Returns the decoded rows."""
    return [segment for row in found.rows for segment in _row(found, row)]


def plain(segments: Sequence[Segment]) -> str:
    """Returns segments as text without colour."""
    pieces = []
    for is_masked, group in itertools.groupby(segments, lambda each: "masked" in each.kind):
        text = "".join(segment.text for segment in group)
        pieces.append(f"⟦{text}⟧" if is_masked else text)
    return "".join(pieces).rstrip("\n")


def documents(found: DataInspection) -> str:
    """Returns a table of the documents that each row holds."""
    rows = []
    for row in found.rows:
        names = [str(row.row), row.source]
        for piece in row.pieces:
            rows.append([*names, *_document(piece), _words(piece)])
            names = ["", ""]
        if row.padding:
            rows.append([*names, "", "", f"{row.padding:,}", "", "", "padding"])
            names = ["", ""]
    header = ["row", "source", "document", "offset", "length", "of", "with loss", "begins with"]
    return f"{_title(found)}\n{format_table(rows, header=header, align='><>>>>>')}"


def _sizes(found: DataInspection) -> str:
    header = ["source", "documents", "text", "tokens", "bytes/token"]
    header += ["rows", "fill rate", "split", "dropped"]
    rows = [
        [
            source.name,
            f"{source.documents:,}",
            format_bytes(source.bytes),
            format_count(source.tokens),
            f"{source.bytes_per_token:.3g}",
            f"{source.packing.rows:,}",
            f"{source.packing.fill_rate:.1%}",
            f"{source.packing.documents_split:,}",
            f"{source.packing.documents_dropped:,}",
        ]
        for source in found.sources
    ]
    return format_table(rows, header=header, align="<>>>>>>>>")


def _lengths(found: DataInspection) -> str:
    names = next((list(source.lengths) for source in found.sources if source.lengths), [])
    header = ["tokens per document", *names, "longer than a row"]
    rows = [
        [
            source.name,
            *(f"{source.lengths[name]:,}" if source.lengths else "" for name in names),
            f"{source.longer_than_a_row:,}",
        ]
        for source in found.sources
    ]
    return format_table(rows, header=header, align="<" + ">" * (len(names) + 1))


def _shares(found: DataInspection) -> str:
    """Returns how often the training repeats each source; of a mixture, also the shares."""
    starts = list(found.sources[0].shares)
    count = min(len(starts), _MAX_STAGES)  # a ramp has many
    shown = [starts[number * (len(starts) - 1) // max(count - 1, 1)] for number in range(count)]
    header = ["training", f"rows in {plural(found.steps, 'step')}", "epochs"]
    header += [f"share from batch {start:,}" for start in shown]
    if starts:
        header.append(f"counted in {plural(found.counted_batches, 'batch', 'batches')}")
    rows = [
        [
            source.name,
            f"{source.rows_taken or 0:,}",
            _epochs(source),
            *(f"{source.shares[start]:.1%}" for start in shown),
            *([f"{source.counted_share or 0:.1%}"] if starts else []),
        ]
        for source in found.sources
    ]
    return format_table(rows, header=header, align="<" + ">" * (len(header) - 1))


def _epochs(source: InspectedSource) -> str:
    return "" if source.epochs is None else f"{source.epochs:.3g}"


def _row(found: DataInspection, row: InspectedRow) -> Iterator[Segment]:
    used = found.sequence_length - row.padding
    yield Segment(
        f"=== row {row.row} of {_batch(found)}, {row.source}: "
        f"{plural(len(row.pieces), 'document')}, {used:,} of {found.sequence_length:,} tokens\n",
        "border",
    )
    for piece in row.pieces:
        end = piece.offset + piece.length
        yield Segment(
            f"--- document {piece.document}, tokens {piece.offset:,} to {end:,} of "
            f"{piece.document_length:,}; {piece.tokens_with_loss:,} with loss\n",
            "border",
        )
        for span in piece.spans:
            yield Segment(_shortened(_visible(span.text)), _kind(span))
        if not piece.text.endswith("\n"):
            yield Segment("\n", "text")
    if row.padding:
        yield Segment(f"--- {plural(row.padding, 'token')} of padding\n", "padding")


def _kind(span: TextSpan) -> Kind:
    if span.is_special:
        return "special" if span.has_loss else "masked special"
    return "text" if span.has_loss else "masked"


def _title(found: DataInspection) -> str:
    skipped = found.batch - found.step
    after = f", after {plural(skipped, 'skipped batch', 'skipped batches')}" if skipped else ""
    return f"the rows of {_batch(found)}{after}"


def _batch(found: DataInspection) -> str:
    return f"step {found.step}" if found.split == TRAIN else f"{found.split} batch {found.step}"


def _document(piece: InspectedPiece) -> list[str]:
    numbers = (piece.offset, piece.length, piece.document_length, piece.tokens_with_loss)
    return [str(piece.document), *(f"{number:,}" for number in numbers)]


def _words(piece: InspectedPiece) -> str:
    words = _visible(" ".join(piece.text[: 4 * _MAX_WORDS].split()))
    return words if len(words) <= _MAX_WORDS else words[: _MAX_WORDS - 3] + "..."


def _shortened(text: str) -> str:
    if len(text) <= _MAX_SPAN:
        return text
    half = _MAX_SPAN // 2
    return f"{text[:half]} ... ({len(text) - 2 * half:,} more characters) ... {text[-half:]}"


def _visible(text: str) -> str:
    """Writes control characters as escapes: a document must not control the terminal."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1]
        for letter in text
    )
