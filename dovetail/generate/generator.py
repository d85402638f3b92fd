"""Generator: prompts in, tokens and text out, all at once or as they come."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np

from dovetail.config import ConfigError, ConfigOf, same
from dovetail.generate.interfaces import NextTokenModel, Prompt, TextDecoder, Tokenizer
from dovetail.generate.memory import with_memory
from dovetail.generate.programs import LARGEST_CHUNK, NO_TOKEN, Programs, State
from dovetail.generate.request import Request, checked_request
from dovetail.generate.samplers import Greedy, Sampler
from dovetail.generate.text import RowText, WholeCharacters
from dovetail.module import Module
from dovetail.parallel import Placement

Stopped = Literal["stop_token", "stop_text", "length"]

# A stop text is found by the host, and what follows it in a chunk was made in vain: short chunks.
_CHUNK_WITH_STOP_TEXTS = 8


@dataclass(frozen=True)
class Generation:
    """What followed one prompt.

    Attributes:
        tokens: the new tokens, without a stop token; one that completed a stop text is among them.
        text: their text up to a stop text; None without a tokenizer.
        stopped: why it ended.
    """

    tokens: list[int]
    text: str | None
    stopped: Stopped


@dataclass(frozen=True)
class Piece:
    """Something new in one row of a stream; `stopped` is set in the row's last piece."""

    row: int
    tokens: list[int]
    text: str | None
    stopped: Stopped | None = None


class Generator:
    """Continues prompts with a trained model.

    generator = Generator(model_config, params, length=512, tokenizer=tokenizer)
    generator.generate(["def "], max_new_tokens=64, sampler=Sampling.Config(temperature=0.8))
    """

    def __init__(
        self,
        model: ConfigOf[NextTokenModel],
        params: Mapping[str, Any],
        *,
        length: int,
        variables: Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        decoder: Callable[[Any], TextDecoder] = WholeCharacters,
        placement: Placement | None = None,
    ) -> None:
        """Builds the model with memories; compiles nothing yet.

        Args:
            model: the model's config as it was trained.
            params: its parameters by path.
            length: how many tokens fit in a row, prompt and new ones together.
            variables: its variables by path.
            tokenizer: makes text of tokens, and tokens of prompts that are text.
            decoder: from the tokenizer, makes what turns one row's tokens into whole characters.
            placement: the mesh and rules by which parameters are split, if they are.
        """
        built: Any = with_memory(model, length).build()
        if not isinstance(built, Module) or not hasattr(built, "logits"):
            raise ConfigError(
                "model: expected the config of a language model (a Module with a method `logits`), "
                f"got that of {type(built).__name__}."
            )
        self._model, self._length = built, length
        self._state = State(dict(params), dict(variables or {}))
        self._tokenizer, self._decoder, self._placement = tokenizer, decoder, placement
        self._programs: list[tuple[ConfigOf[Sampler], Programs]] = []

    def with_params(
        self, params: Mapping[str, Any], variables: Mapping[str, Any] | None = None
    ) -> Generator:
        """Returns a generator with other parameters that shares what is compiled."""
        other = copy.copy(self)
        other._state = State(dict(params), dict(variables or {}))
        return other

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        sampler: ConfigOf[Sampler] | None = None,
        stop_tokens: Iterable[int] = (),
        stop_texts: Sequence[str] = (),
        seed: int = 0,
    ) -> list[Generation]:
        """Continues each prompt, and returns the continuations in the same order.

        Args:
            prompts: token ids; or texts, where there is a tokenizer.
            max_new_tokens: how many tokens may follow each prompt.
            sampler: how the next token is chosen; the likeliest, unless it is given.
            stop_tokens: tokens that end a row, and do not become part of it.
            stop_texts: texts that end a row when they appear in what is new.
            seed: the source of randomness. A row's draws depend on the seed, on the row's number
                and on the position, never on the other rows.
        """
        request = self._request(prompts, max_new_tokens, stop_tokens, stop_texts, seed)
        chunk = _CHUNK_WITH_STOP_TEXTS if stop_texts else LARGEST_CHUNK
        rows: list[list[Piece]] = [[] for _ in request.prompts]
        for piece in self._pieces(request, sampler or Greedy.Config(), chunk):
            rows[piece.row].append(piece)
        return [_joined(pieces) for pieces in rows]

    def stream(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        sampler: ConfigOf[Sampler] | None = None,
        stop_tokens: Iterable[int] = (),
        stop_texts: Sequence[str] = (),
        seed: int = 0,
        tokens_per_piece: int = 4,
    ) -> Iterator[Piece]:
        """Continues each prompt, and yields pieces as they come.

        Joined, they are what generate() returns. Text comes in whole characters, and what may be
        the beginning of a stop text is held back. Arguments are those of generate(); fewer tokens a
        piece come sooner, more cost less.
        """
        if not 1 <= tokens_per_piece <= LARGEST_CHUNK:
            raise ConfigError(
                f"tokens_per_piece: expected 1 to {LARGEST_CHUNK}, got {tokens_per_piece}."
            )
        request = self._request(prompts, max_new_tokens, stop_tokens, stop_texts, seed)
        return self._pieces(request, sampler or Greedy.Config(), tokens_per_piece)

    def _request(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        stop_tokens: Iterable[int],
        stop_texts: Sequence[str],
        seed: int,
    ) -> Request:
        return checked_request(
            prompts,
            max_new_tokens=max_new_tokens,
            stop_tokens=stop_tokens,
            stop_texts=stop_texts,
            seed=seed,
            vocab_size=self._model.vocab_size,
            length=self._length,
            tokenizer=self._tokenizer,
        )

    def _pieces(self, request: Request, sampler: ConfigOf[Sampler], chunk: int) -> Iterator[Piece]:
        rows = [
            _Row(index, request, self._row_text(request)) for index in range(len(request.prompts))
        ]
        for tokens_BC in self._chunks(request, sampler, chunk) if rows else ():
            for row, tokens in zip(rows, tokens_BC.tolist(), strict=False):
                if row.stopped is None:
                    piece = row.take(tokens)
                    if piece.tokens or piece.text or piece.stopped:
                        yield piece
            if all(row.stopped for row in rows):
                return

    def _chunks(
        self, request: Request, sampler: ConfigOf[Sampler], chunk: int
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Yields new tokens [B, C] as the device makes them."""
        programs, state = self._programs_for(sampler), self._state
        tokens_BP, lengths_B, new_B, stops_N = request.padded(self._length, self._row_multiple())
        key = jax.random.key(request.seed)
        rows, tokens_BC = programs.prefill(state, key, tokens_BP, lengths_B, new_B, stops_N)
        yield np.asarray(tokens_BC)
        for start in range(1, request.max_new_tokens, chunk):
            count = min(chunk, request.max_new_tokens - start)
            rows, tokens_BC = programs.decode(state, rows, stops_N, count)
            yield np.asarray(tokens_BC)[:, :count]

    def _programs_for(self, sampler: ConfigOf[Sampler]) -> Programs:
        for known, programs in self._programs:
            if same(known, sampler):
                return programs
        programs = Programs(self._model, sampler.build(), self._placement)
        self._programs.append((sampler.clone(), programs))
        return programs

    def _row_multiple(self) -> int:
        """Returns what the number of rows must be a multiple of, to be split over the mesh."""
        if self._placement is None:
            return 1
        devices = self._placement.mesh.size
        (rows_each,) = self._placement.sharding(("batch",)).shard_shape((devices,))
        return devices // rows_each

    def _row_text(self, request: Request) -> RowText | None:
        if self._tokenizer is None:
            return None
        return RowText(self._decoder(self._tokenizer), request.stop_texts)


@dataclass
class _Row:
    """One row on the host: cuts tokens and text where the row ends."""

    index: int
    request: Request
    text: RowText | None
    count: int = 0
    stopped: Stopped | None = field(default=None)

    def take(self, tokens: list[int]) -> Piece:
        """Takes further tokens from the device, and returns what is new."""
        kept = self._until_stop([token for token in tokens if token != NO_TOKEN])
        if self.text is None:
            return Piece(self.index, kept, None, self.stopped)
        kept, text = self._read(kept, self.text)
        return Piece(self.index, kept, text, self.stopped)

    def _until_stop(self, tokens: list[int]) -> list[int]:
        kept: list[int] = []
        for token in tokens:
            if token in self.request.stop_tokens:
                self.stopped = "stop_token"
                break
            kept.append(token)
            self.count += 1
            if self.count == self.request.max_new_tokens:
                self.stopped = "length"
                break
        return kept

    def _read(self, tokens: list[int], text: RowText) -> tuple[list[int], str]:
        """Returns the tokens up to a stop text, and the text before it."""
        new = ""
        # One by one only where it matters which token completed a stop text.
        pushes = [[token] for token in tokens] if self.request.stop_texts else [tokens]
        for number, push in enumerate(pushes, start=1):
            new += text.push(push)
            if text.stopped:
                self.stopped = "stop_text"
                return tokens[:number], new
        if self.stopped is not None:
            new += text.finish()
            if text.stopped:
                self.stopped = "stop_text"
        return tokens, new


def _joined(pieces: list[Piece]) -> Generation:
    tokens = [token for piece in pieces for token in piece.tokens]
    texts = [piece.text for piece in pieces if piece.text is not None]
    stopped = pieces[-1].stopped
    assert stopped is not None, "a row's last piece says why it ended"
    return Generation(tokens, "".join(texts) if texts else None, stopped)
