"""The key paths of an experiment's config: checked, suggested and completed without importing JAX.

A config exists only once its classes are imported, which takes a second. So the key paths of each
experiment are cached in the user's cache folder when it is first used, and a mistyped key is
refused from there. After a file of the package has changed, the list is stale: it refuses only what
no line of the package declares, and is written again with the next config that is built.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config import (
    Config,
    ConfigError,
    did_you_mean,
    is_old_field,
    nearest,
    value_choices,
    visit,
)
from dovetail.utils import atomic_write, user_cache_folder

_PACKAGE = Path(__file__).parents[1]
_SUGGESTIONS = 3
_CLOSE = 0.8  # the similarity of a mistyped name to what was meant

# The end of a field's path, and what other programs call the field.
_OTHER_NAMES = {
    "schedule.peak": "lr learning_rate max_lr peak_lr",
    "warmup_steps": "warmup",
    "warmup_fraction": "warmup",
    "weight_decay": "wd",
    "clip_norm": "max_grad_norm grad_clip clip",
    "b1": "beta1",
    "b2": "beta2",
    "num_layers": "layers n_layer n_layers num_hidden_layers depth",
    "num_heads": "heads n_head n_heads num_attention_heads",
    "model.width": "d_model dim hidden_size n_embd",
    "feed_forward.hidden": "d_ff intermediate_size",
    "batch_size": "bs batch global_batch_size train_batch_size",
    "sequence_length": "seq_len seq_length max_seq_len context_length block_size",
    "vocab_size": "vocab",
    "steps": "max_steps num_steps iterations",
    "seed": "random_seed",
    "input.corpus": "data dataset",
    "model.dtype": "precision",
    "checkpointer.every": "save_every",
    "held_out.every": "eval_every",
    "log_every": "log_interval",
}
ALIASES: dict[str, list[str]] = {}
for _field, _names in _OTHER_NAMES.items():
    for _name in _names.split():
        ALIASES.setdefault(_name, []).append(_field)


@dataclass(frozen=True)
class ConfigKeys:
    """The configs of a tree by path: the name of what each builds, and its fields.

    A field maps to what may be typed as its value, where that is a short list of words.
    """

    configs: dict[str, tuple[str, dict[str, list[str]]]]
    is_current: bool = True
    """Whether the package is unchanged since they were listed."""

    @classmethod
    def of(cls, config: Config[Any], *, with_choices: bool = False) -> ConfigKeys:
        """Lists the keys of a config."""
        return cls(
            {
                path: (
                    type(each).display_name(),
                    {
                        name: value_choices(each, name) if with_choices else []
                        for name in each.fields()
                    },
                )
                for path, each in visit(config)
            }
        )

    def paths(self) -> list[str]:
        """Returns the path of every field."""
        return [
            f"{path}.{name}" if path else name
            for path, (_, fields) in self.configs.items()
            for name in fields
        ]

    def choices(self, path: str) -> list[str]:
        """Returns the words that may be typed as the value at a path, where they are few."""
        holder, _, name = path.rpartition(".")
        return self.configs.get(holder, ("", {}))[1].get(name, [])

    def check(self, overrides: Sequence[str], *, is_final: bool = True) -> None:
        """Raises a ConfigError for the first key that does not exist, with suggestions.

        If the tree is not final, a modifier may still add any field that the package declares. If
        the list is stale, a change of the package may have added it.
        """
        is_final = is_final and self.is_current
        changed = {text.partition("=")[0].strip() for text in overrides}
        for text in overrides:
            path, equals, value = text.partition("=")
            unknown = self._unknown_piece(path.strip()) if equals else None
            if unknown is None:
                continue
            holder, name = unknown
            pieces = holder.split(".")
            above = {".".join(pieces[:count]) for count in range(1, len(pieces) + 1)}
            if changed & above or is_old_field(name):
                continue  # another override replaces the holder, or the name was renamed
            if not is_final and self._may_be_added(holder, name):
                continue
            owner, fields = self.configs[holder]
            raise ConfigError(
                f"{holder}{'.' if holder else ''}{name}: {owner} has no field {name!r}. "
                f"{self._advice(path.strip(), holder, name, fields, value)}"
            )

    def suggest(self, name: str, holder: str = "") -> list[str]:
        """Returns the paths that a bare name or a common alias may mean, shortest first."""
        ends = [name, *ALIASES.get(name, ())]
        found = [path for path in self.paths() if _ends_with(path, ends)]
        inside = [path for path in found if holder and path.startswith(f"{holder}.")]
        return sorted(inside or found, key=lambda path: (path.count("."), path))

    def _unknown_piece(self, path: str) -> tuple[str, str] | None:
        """Returns the config and the name in it at which a path leaves the tree."""
        holder = ""
        for piece in path.split("."):
            if holder not in self.configs:
                return None  # below a dict, a list or a plain value, which the parser checks
            if piece not in self.configs[holder][1]:
                return holder, piece
            holder = f"{holder}.{piece}" if holder else piece
        return None

    def _may_be_added(self, holder: str, name: str) -> bool:
        """Says whether a field may be added, by a modifier or by a change of the package.

        No modifier adds a field to the root. What is added elsewhere may have the name that was
        meant, or be an argument of another package's function.
        """
        if self.is_current and not holder and self.suggest(name):
            return False
        declared = _declared_names()
        if name in declared:
            return True
        if nearest(name, self._leaves() | ALIASES.keys(), cutoff=_CLOSE):
            return False
        return bool(holder or nearest(name, declared, cutoff=_CLOSE))

    def _leaves(self) -> set[str]:
        return {path.rpartition(".")[2] for path in self.paths()}

    def _advice(self, path: str, holder: str, name: str, fields: Iterable[str], value: str) -> str:
        leaf = path.rpartition(".")[2]
        is_leaf = leaf == name
        if is_leaf and (found := self.suggest(leaf, holder)):
            return did_you_mean_keys(found, value)
        if nearest(name, fields):
            return did_you_mean(name, fields)
        leaves = self._leaves() | ALIASES.keys()
        close = nearest(leaf, leaves, count=1, cutoff=0.75) if is_leaf else []
        if close:
            return did_you_mean_keys(self.suggest(close[0], holder), value)
        return did_you_mean(name, fields)


def did_you_mean_keys(paths: Sequence[str], value: str = "") -> str:
    """Returns advice that names full key paths, as they may be typed."""
    end = f"={value.strip()}" if value.strip() else ""
    shown = " or ".join(f"{path}{end}" for path in paths[:_SUGGESTIONS])
    more = f" ({len(paths)} keys end like this)" if len(paths) > _SUGGESTIONS else ""
    return f"Did you mean {shown}?{more}"


def cached_keys(experiment: str) -> ConfigKeys | None:
    """Returns the cached keys of one of the package's own experiments, current or stale."""
    try:
        stored = json.loads(_file(experiment).read_text())
        configs = {path: (owner, fields) for path, (owner, fields) in stored["configs"]}
        return ConfigKeys(configs, is_current=stored["fingerprint"] == _fingerprint())
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never written, or damaged


def cache_keys(experiment: str, config: Config[Any]) -> ConfigKeys:
    """Writes the keys of an experiment to the cache, as far as possible, and returns them."""
    keys = ConfigKeys.of(config, with_choices=True)
    entry = {"fingerprint": _fingerprint(), "configs": list(keys.configs.items())}
    with contextlib.suppress(OSError):
        _file(experiment).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(_file(experiment), json.dumps(entry))
    return keys


def _file(experiment: str) -> Path:
    return user_cache_folder() / "keys" / f"{experiment}.json"


def _fingerprint() -> list[Any]:
    """Returns what changes with any file of the package: their number and the newest change."""
    changes = [file.stat().st_mtime_ns for file in _package_files()]
    return [str(_PACKAGE), list(sys.version_info[:2]), max(changes), len(changes)]


def _declared_names() -> set[str]:
    """Returns every name that a line of the package annotates, which all config fields are."""
    sources = [file.read_text("utf-8") for file in _package_files() if file.suffix == ".py"]
    return set(re.findall(r"^ +(\w+): ", "\n".join(sources), re.MULTILINE))


def _package_files() -> list[Path]:
    return [
        Path(folder, name)
        for folder, _, names in os.walk(_PACKAGE)
        if not folder.endswith("__pycache__")
        for name in names
    ]


def _ends_with(path: str, ends: Iterable[str]) -> bool:
    return any(path == end or path.endswith(f".{end}") for end in ends)
