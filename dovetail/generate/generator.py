"""Generator: continues prompts with a trained model, in one call or as a stream."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from dovetail.config import ConfigError, ConfigOf, same
from dovetail.generate.cache import with_kv_cache
from dovetail.generate.detokenizer import IncrementalDetokenizer, TextStream
from dovetail.generate.interfaces import Detokenizer, NextTokenModel, Prompt, TokenizerLike
from dovetail.generate.programs import MAX_CHUNK, NO_TOKEN, DecodePrograms, ModelState
from dovetail.generate.request import GenerationRequest, make_request
from dovetail.generate.samplers import Greedy, Sampler
from dovetail.module import Module
from dovetail.parallel import Placement

FinishReason = Literal["stop_token", "stop_string", "length"]

# The host finds stop strings. Tokens that follow one in a chunk are wasted, so chunks are short.
_CHUNK_WITH_STOP_STRINGS = 8


@dataclass(frozen=True)
class Generation:
    """The continuation of one prompt.

    Attributes:
        tokens: the new tokens. A stop token is not included; the token that completes a stop string
            is.
        text: the text before any stop string; None without a tokenizer.
        finish_reason: why generation ended.
    """

    tokens: list[int]
    text: str | None
    finish_reason: FinishReason


@dataclass(frozen=True)
class GenerationChunk:
    """New tokens and text of one row of a stream; `finish_reason` is set in its last chunk."""

    row: int
    tokens: list[int]
    text: str | None
    finish_reason: FinishReason | None = None


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
        tokenizer: TokenizerLike | None = None,
        detokenizer: Callable[[Any], Detokenizer] = IncrementalDetokenizer,
        placement: Placement | None = None,
    ) -> None:
        """Builds the model with KV caches; compiles nothing yet.

        Args:
            model: the config of the trained model.
            params: parameters by path.
            length: the capacity of the KV cache in tokens: prompt and new tokens together.
            variables: variables by path.
            tokenizer: encodes text prompts and decodes new tokens.
            detokenizer: makes the detokenizer of one row from the tokenizer.
            placement: the mesh and sharding rules of the parameters, if they are sharded.
        """
        built: Any = with_kv_cache(model, length).build()
        if not isinstance(built, Module) or not hasattr(built, "logits"):
            raise ConfigError(
                "model: expected the config of a language model (a Module with a method `logits`), "
                f"got the config of {type(built).__name__}."
            )
        self._model, self._length = built, length
        self._state = ModelState(dict(params), dict(variables or {}))
        self._tokenizer, self._detokenizer, self._placement = tokenizer, detokenizer, placement
        self._programs: list[tuple[ConfigOf[Sampler], DecodePrograms]] = []

    def with_params(
        self, params: Mapping[str, Any], variables: Mapping[str, Any] | None = None
    ) -> Generator:
        """Returns a generator with other parameters that shares the compiled programs."""
        other = copy.copy(self)
        other._state = ModelState(dict(params), dict(variables or {}))
        return other

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        sampler: ConfigOf[Sampler] | None = None,
        stop_tokens: Iterable[int] = (),
        stop_strings: Sequence[str] = (),
        seed: int = 0,
        inputs: Mapping[str, Any] | None = None,
        axis_positions: Sequence[Any] | None = None,
    ) -> list[Generation]:
        """Continues each prompt and returns the continuations in the same order.

        Args:
            prompts: token ids, or text if there is a tokenizer.
            max_new_tokens: the largest number of new tokens per prompt.
            sampler: chooses the next token; greedy by default.
            stop_tokens: token ids that end a row. They are not returned.
            stop_strings: strings that end a row when they appear in the new text.
            seed: the random seed. A row's samples depend on the seed, the row's index and the
                position, never on the other rows.
            inputs: named inputs of the layers' context, for the prompts alone: arrays with one row
                per prompt, such as the source of an encoder.
            axis_positions: for each prompt the positions of its tokens on several axes
                [tokens, axes], if they have several. New tokens follow the largest of them, and
                are at the same position on all axes.
        """
        request = self._request(
            prompts, max_new_tokens, stop_tokens, stop_strings, seed, axis_positions
        )
        chunk_size = _CHUNK_WITH_STOP_STRINGS if stop_strings else MAX_CHUNK
        rows: list[list[GenerationChunk]] = [[] for _ in request.prompts]
        for chunk in self._stream(request, sampler or Greedy.Config(), chunk_size, inputs):
            rows[chunk.row].append(chunk)
        return [_join(chunks) for chunks in rows]

    def stream(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        sampler: ConfigOf[Sampler] | None = None,
        stop_tokens: Iterable[int] = (),
        stop_strings: Sequence[str] = (),
        seed: int = 0,
        inputs: Mapping[str, Any] | None = None,
        axis_positions: Sequence[Any] | None = None,
        tokens_per_chunk: int = 4,
    ) -> Iterator[GenerationChunk]:
        """Continues each prompt and yields chunks as they are decoded.

        The chunks of a row concatenate to the result of generate(). Text is streamed in complete
        characters, and a possible prefix of a stop string is held back. Smaller chunks lower the
        latency; larger chunks raise the throughput. Other arguments are those of generate().
        """
        if not 1 <= tokens_per_chunk <= MAX_CHUNK:
            raise ConfigError(
                f"tokens_per_chunk: expected 1 to {MAX_CHUNK}, got {tokens_per_chunk}."
            )
        request = self._request(
            prompts, max_new_tokens, stop_tokens, stop_strings, seed, axis_positions
        )
        return self._stream(request, sampler or Greedy.Config(), tokens_per_chunk, inputs)

    def _request(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        stop_tokens: Iterable[int],
        stop_strings: Sequence[str],
        seed: int,
        axis_positions: Sequence[Any] | None,
    ) -> GenerationRequest:
        return make_request(
            prompts,
            max_new_tokens=max_new_tokens,
            stop_tokens=stop_tokens,
            stop_strings=stop_strings,
            seed=seed,
            vocab_size=self._model.vocab_size,
            length=self._length,
            tokenizer=self._tokenizer,
            axis_positions=axis_positions,
        )

    def _stream(
        self,
        request: GenerationRequest,
        sampler: ConfigOf[Sampler],
        chunk_size: int,
        inputs: Mapping[str, Any] | None,
    ) -> Iterator[GenerationChunk]:
        rows = [
            _Row(index, request, self._row_text(request)) for index in range(len(request.prompts))
        ]
        for tokens_BC in self._decode(request, sampler, chunk_size, inputs) if rows else ():
            for row, tokens in zip(rows, tokens_BC.tolist(), strict=False):
                if row.finish_reason is None:
                    chunk = row.push(tokens)
                    if chunk.tokens or chunk.text or chunk.finish_reason:
                        yield chunk
            if all(row.finish_reason for row in rows):
                return

    def _decode(
        self,
        request: GenerationRequest,
        sampler: ConfigOf[Sampler],
        chunk_size: int,
        inputs: Mapping[str, Any] | None,
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Prefills, then runs the decode loop; yields new tokens [B, C] chunk by chunk."""
        programs, state = self._programs_for(sampler), self._state
        tokens_BP, lengths_B, new_B, stops_N = request.padded(self._length, self._row_multiple())
        key = jax.random.key(request.seed)
        inputs = _padded(inputs or {}, len(request.prompts), len(tokens_BP))
        decode_state, tokens_BC = programs.prefill(
            state,
            key,
            tokens_BP,
            lengths_B,
            new_B,
            stops_N,
            inputs,
            request.padded_axis_positions(tokens_BP.shape),
        )
        yield np.asarray(tokens_BC)
        for start in range(1, request.max_new_tokens, chunk_size):
            count = min(chunk_size, request.max_new_tokens - start)
            decode_state, tokens_BC = programs.decode(state, decode_state, stops_N, count)
            yield np.asarray(tokens_BC)[:, :count]

    def _programs_for(self, sampler: ConfigOf[Sampler]) -> DecodePrograms:
        for known, programs in self._programs:
            if same(known, sampler):
                return programs
        programs = DecodePrograms(self._model, sampler.build(), self._placement)
        self._programs.append((sampler.clone(), programs))
        return programs

    def _row_multiple(self) -> int:
        """Returns the number that must divide the rows so that the mesh can shard them."""
        if self._placement is None:
            return 1
        devices = self._placement.mesh.size
        (rows_each,) = self._placement.sharding(("batch",)).shard_shape((devices,))
        return devices // rows_each

    def _row_text(self, request: GenerationRequest) -> TextStream | None:
        if self._tokenizer is None:
            return None
        return TextStream(self._detokenizer(self._tokenizer), request.stop_strings)


@dataclass
class _Row:
    """The state of one row on the host: truncates tokens and text at a stop."""

    index: int
    request: GenerationRequest
    text: TextStream | None
    count: int = 0
    finish_reason: FinishReason | None = None

    def push(self, tokens: list[int]) -> GenerationChunk:
        """Adds decoded tokens and returns the chunk to stream."""
        new = self._until_stop([token for token in tokens if token != NO_TOKEN])
        if self.text is None:
            return GenerationChunk(self.index, new, None, self.finish_reason)
        new, text = self._detokenize(new, self.text)
        return GenerationChunk(self.index, new, text, self.finish_reason)

    def _until_stop(self, tokens: list[int]) -> list[int]:
        new: list[int] = []
        for token in tokens:
            if token in self.request.stop_tokens:
                self.finish_reason = "stop_token"
                break
            new.append(token)
            self.count += 1
            if self.count == self.request.max_new_tokens:
                self.finish_reason = "length"
                break
        return new

    def _detokenize(self, tokens: list[int], text: TextStream) -> tuple[list[int], str]:
        """Returns the tokens up to the end of a stop string, and the text before it."""
        new = ""
        # One by one only if it matters which token completes a stop string.
        pushes = [[token] for token in tokens] if self.request.stop_strings else [tokens]
        for number, push in enumerate(pushes, start=1):
            new += text.push(push)
            if text.stopped:
                self.finish_reason = "stop_string"
                return tokens[:number], new
        if self.finish_reason is not None:
            new += text.finish()
            if text.stopped:
                self.finish_reason = "stop_string"
        return tokens, new


def _padded(inputs: Mapping[str, Any], rows: int, padded_rows: int) -> dict[str, Any]:
    """Returns named inputs with as many rows as the padded prompts."""

    def padded(name: str, value: Any) -> Any:
        array = np.asarray(value)
        if array.shape[:1] != (rows,):
            raise ConfigError(
                f"inputs[{name!r}]: expected one row per prompt ({rows}), got the shape "
                f"{array.shape}."
            )
        return np.pad(array, [(0, padded_rows - rows), *[(0, 0)] * (array.ndim - 1)])

    return {
        name: jax.tree.map(functools.partial(padded, name), value) for name, value in inputs.items()
    }


def _join(chunks: list[GenerationChunk]) -> Generation:
    tokens = [token for chunk in chunks for token in chunk.tokens]
    texts = [chunk.text for chunk in chunks if chunk.text is not None]
    finish_reason = chunks[-1].finish_reason
    assert finish_reason is not None, "the last chunk of a row has a finish reason"
    return Generation(tokens, "".join(texts) if texts else None, finish_reason)
