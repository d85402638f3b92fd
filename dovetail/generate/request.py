"""A validated generation request: prompts, limits and stop conditions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.generate.interfaces import Prompt, TokenizerLike

_MIN_PROMPT_LENGTH = 16
_MIN_STOP_TOKENS = 4
_MAX_SEEDS = 2**32


@dataclass(frozen=True)
class GenerationRequest:
    """Tokenized prompts, the token limit, stop conditions and the seed.

    `axis_positions` are the positions of the prompts' tokens on several axes [tokens, axes], if
    they have several.
    """

    prompts: list[NDArray[np.int32]]
    max_new_tokens: int
    stop_tokens: frozenset[int]
    stop_strings: tuple[str, ...]
    seed: int
    axis_positions: list[NDArray[np.int32]] | None = None

    def padded(self, length: int, row_multiple: int) -> tuple[NDArray[np.int32], ...]:
        """Returns tokens [B, P], prompt lengths [B], numbers of new tokens [B], stop tokens [N].

        Sizes are rounded up to powers of two (P to at most `length`), so that few programs are
        compiled.
        """
        rows = power_of_two(len(self.prompts))
        rows += -rows % row_multiple
        longest = max(len(prompt) for prompt in self.prompts)
        tokens_BP = np.zeros(
            (rows, min(power_of_two(longest, _MIN_PROMPT_LENGTH), length)), np.int32
        )
        lengths_B, new_B = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        for row, prompt in enumerate(self.prompts):
            tokens_BP[row, : len(prompt)] = prompt
            lengths_B[row], new_B[row] = len(prompt), self.max_new_tokens
        # Padding: no token has id -1.
        stops_N = np.full(power_of_two(len(self.stop_tokens), _MIN_STOP_TOKENS), -1, np.int32)
        stops_N[: len(self.stop_tokens)] = sorted(self.stop_tokens)
        return tokens_BP, lengths_B, new_B, stops_N

    def padded_axis_positions(self, shape: tuple[int, ...]) -> NDArray[np.int32] | None:
        """Returns the positions on several axes [B, P, A] of padded prompts [B, P], if any."""
        if not self.axis_positions:
            return None
        padded = np.zeros((*shape, self.axis_positions[0].shape[1]), np.int32)
        for row, positions in enumerate(self.axis_positions):
            padded[row, : len(positions)] = positions
        return padded


def make_request(
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    stop_tokens: Iterable[int],
    stop_strings: Sequence[str],
    seed: int,
    vocab_size: int,
    length: int,
    tokenizer: TokenizerLike | None,
    axis_positions: Sequence[Any] | None = None,
) -> GenerationRequest:
    """Returns the request. Raises ConfigError if an argument is invalid."""
    if isinstance(prompts, str):
        raise ConfigError(
            f"prompts: expected a list of prompts, got one string. Write [{prompts!r}]."
        )
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens: expected 1 or more, got {max_new_tokens}.")
    if not 0 <= seed < _MAX_SEEDS:
        raise ConfigError(f"seed: expected 0 or more and less than {_MAX_SEEDS}, got {seed}.")
    checked = []
    for index, prompt in enumerate(prompts):
        tokens = _tokens(prompt, f"prompts[{index}]", vocab_size, tokenizer)
        _check_length(len(tokens), max_new_tokens, length, f"prompts[{index}]")
        checked.append(tokens)
    stops = frozenset(int(token) for token in stop_tokens)
    for token in stops:
        if not 0 <= token < vocab_size:
            raise ConfigError(
                f"stop_tokens: {token} can never be generated; the model's ids are 0 to "
                f"{vocab_size - 1}."
            )
    _check_stop_strings(stop_strings, tokenizer)
    positions = None if axis_positions is None else _axis_positions(axis_positions, checked)
    return GenerationRequest(
        checked, max_new_tokens, stops, tuple(stop_strings), seed, axis_positions=positions
    )


def power_of_two(number: int, least: int = 1) -> int:
    """Returns the smallest power of two that is at least `number` and `least`."""
    return max(least, 1 << max(number - 1, 0).bit_length())


def _tokens(
    prompt: Prompt, where: str, vocab_size: int, tokenizer: TokenizerLike | None
) -> NDArray[np.int32]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ConfigError(
                f"{where}: the prompt is text, but this generator has no tokenizer. Build it with "
                "Generator(..., tokenizer=...), or pass token ids."
            )
        prompt = tokenizer.encode(prompt)
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or not tokens.size:
        got = "nothing" if not tokens.size else f"an array of shape {tokens.shape}"
        raise ConfigError(
            f"{where}: expected at least one token, got {got}. For an empty prompt, pass the "
            "tokenizer's end-of-text token."
        )
    check_token_ids(tokens, where, vocab_size)
    return tokens.astype(np.int32)


def check_token_ids(tokens: NDArray[Any], where: str, vocab_size: int) -> None:
    """Raises a ConfigError for what is not in the vocabulary; its embedding would be NaN."""
    if tokens.dtype.kind not in "iu":
        raise ConfigError(f"{where}: expected token ids (integers), got {tokens.dtype}.")
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if outside.size:
        raise ConfigError(
            f"{where}: token {outside.flat[0]} is not in the model's vocabulary, whose ids are 0 "
            f"to {vocab_size - 1}. Use the tokenizer that the model was trained with."
        )


def _axis_positions(
    axis_positions: Sequence[Any], prompts: Sequence[NDArray[np.int32]]
) -> list[NDArray[np.int32]]:
    found = [np.asarray(positions) for positions in axis_positions]
    if len(found) != len(prompts):
        raise ConfigError(
            f"axis_positions: expected one array per prompt ({len(prompts)}), got {len(found)}."
        )
    for index, (positions, prompt) in enumerate(zip(found, prompts, strict=True)):
        num_axes = found[0].shape[1] if found[0].ndim == 2 else 0
        is_right = positions.shape == (len(prompt), num_axes) and positions.dtype.kind in "iu"
        if not (is_right and num_axes):
            raise ConfigError(
                f"axis_positions[{index}]: expected integers [tokens, axes], one row for each of "
                f"the {len(prompt)} tokens of the prompt and as many axes as those of the other "
                f"prompts, got {positions.dtype} of shape {positions.shape}."
            )
    return [positions.astype(np.int32) for positions in found]


def _check_length(prompt: int, new: int, length: int, where: str) -> None:
    if prompt + new > length:
        left = length - prompt
        shorter = f"lower max_new_tokens to {left}" if left > 0 else "shorten the prompt"
        raise ConfigError(
            f"{where}: {prompt} tokens and {new} new ones make {prompt + new}, but the KV cache "
            f"holds {length}. Build the generator with length={prompt + new}, or {shorter}."
        )


def _check_stop_strings(stop_strings: Sequence[str], tokenizer: TokenizerLike | None) -> None:
    if isinstance(stop_strings, str):
        raise ConfigError(
            f"stop_strings: expected a list of strings, got one string. Write [{stop_strings!r}]."
        )
    if not all(stop_strings):
        raise ConfigError(
            "stop_strings: an empty string would stop before the first token. Leave it out."
        )
    if stop_strings and tokenizer is None:
        raise ConfigError(
            "stop_strings: this generator has no tokenizer, so it produces no text. Build it with "
            "Generator(..., tokenizer=...), or use stop_tokens."
        )
