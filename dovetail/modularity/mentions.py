"""Mentions: lines that name a feature in code that it does not own.

Names are compared as words, so `use_alibi`, `AlibiScores` and "alibi" are mentions of alibi. Some
have a reason: the component that a feature sets is a default, or a shared kernel has a term for it.
`ALLOWED_MENTIONS` lists these; any other is a leak.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail.features import Feature
from dovetail.modularity.leaks import COMPOSING, OLD_NAMES, SourceLine
from dovetail.modularity.ownership import is_inside, owned_lines, with_emptied_files
from dovetail.modularity.scan.words import FeatureWords, builtin_words
from dovetail.modularity.tasks import PACKAGE

# Compositions and features name what they use; the meter names everything.
_EXEMPT = (*COMPOSING, "features", "modularity")


# By feature and by file or folder, with the reason. A test fails on an entry that nothing needs.
ALLOWED_MENTIONS: dict[str, dict[str, str]] = {
    "accumulate": {
        "learner/": "a way to compute gradients, for every learner",
        "data/chat/encode.py": "np.maximum.accumulate",
        "module/weight_mapping.py": "itertools.accumulate",
        "targets/fitting.py": "the target chooses microbatches by the memory of its devices",
        "plan/candidates.py": "a way to save memory that the search may choose",
    },
    "bf16": {
        "runtime/safetensors.py": "the name of a dtype in a file format",
        "kernels/attention/gpu/": "JAX's name for a matmul precision, passed to a kernel",
    },
    "capacity": {
        "kernels/all_to_all/": "the size of a receive buffer, in a folder that moe owns",
        "layers/moe/": "a way to dispatch tokens, in the folder that moe owns",
    },
    "ema": {
        "learner/": "an average that every learner can have; the feature sets it",
        "targets/sharding.py": "the average is a component of the training state",
        "runtime/checkpoints/": "a checkpoint may have an average, which evaluation reads",
    },
    "fp8": {
        "runtime/cpu.py": "the peak FLOP/s of the CPU by precision",
        "hardware/": "the peak FLOP/s of chips by precision",
        "runtime/safetensors.py": "the names of dtypes in a file format",
    },
    "int8": {
        "runtime/cpu.py": "the peak FLOP/s of the CPU by precision",
        "hardware/": "the peak FLOP/s of chips by precision",
    },
    "moe": {
        "targets/fitting.py": "the mesh axis of that name",
        "plan/": "the mesh axis and the logical axis of that name",
        "parallel/": "the mesh axis and the logical axis of that name",
    },
    "no-positions": {
        "layers/": "the default position encoding of attention",
    },
    "offload": {
        "plan/candidates.py": "part of another feature's name, offload-optimizer",
        "parallel/": "a remat policy, for every stack",
    },
    "offload-optimizer": {
        "plan/candidates.py": "a way to save memory that the search may choose",
    },
    "optimizer": {
        "plan/": "the component of that name of the training state, and of device memory",
        "targets/": "the component of that name of the training state",
        "learner/": "every learner has an optimizer; the feature chooses one by name",
    },
    "output-norm": {
        "layers/": "other norms of an output: that of sandwich-norm, and of a linear map",
    },
    "pipeline": {
        "plan/": "the mesh axis of that name",
        "learner/": "a way to compute gradients, for every learner",
        "parallel/": "the mesh axis of that name",
    },
    "plain-feed-forward": {
        "layers/feed_forward.py": "a layer that families use, too",
    },
    "pre-norm": {
        "layers/": "the default of every block",
    },
    "remat": {
        "layers/moe/": "all-gathers that the backward pass repeats",
        "layers/stack/": "every stack has a remat policy; the feature chooses it",
        "parallel/": "the policies and their interface",
        "targets/fitting.py": "the target chooses the policy by the memory of its devices",
        "plan/": "a way to save memory that the search may choose",
    },
    "rms-norm": {
        "layers/": "the default norm of all layers",
    },
    "router-z-loss": {
        "layers/moe/": "a router loss, in the folder that moe owns",
    },
    "schedule": {
        "parallel/": "pipeline schedules",
        "learner/": "every learner has a schedule; the feature chooses one by name",
    },
    "sigmoid": {
        "layers/": "the function of that name, as an activation and as a router score",
    },
    "sinks": {
        "kernels/attention/": "its kernel: a term in the softmax of every attention kernel",
        "layers/attention/scores.py": "how it is passed to a kernel",
    },
    "sliding-window": {
        "kernels/attention/": "a mask; the feature sets it",
    },
    "soft-cap": {
        "layers/attention/scores.py": "the import of its kernel",
        "kernels/": "its kernel: a score map that every kernel takes",
    },
    "z-loss": {
        "kernels/cross_entropy/": "its kernel: a term of the fused loss",
        "layers/loss/next_token.py": "the setting of that kernel",
        "layers/moe/": "the router z-loss",
    },
}


def mentions(feature: Feature, package: Path = PACKAGE) -> list[SourceLine]:
    """Returns the lines that name a feature in code that it does not own.

    Compositions, features and the meter are left out.
    """
    words = _words(feature.name)
    owned = with_emptied_files(package, feature.files)
    matches = []
    for path in sorted(package.rglob("*.py")):
        file = str(path.relative_to(package))
        if file.partition("/")[0] in _EXEMPT or is_inside(file, (OLD_NAMES, *owned)):
            continue
        source = path.read_text()
        lines = source.splitlines()
        numbers = {number for number, name in _names(source) if words.match(name)}
        numbers -= owned_lines(source, file, owned)
        matches += [SourceLine(file, n, lines[n - 1].strip()) for n in sorted(numbers)]
    return matches


def unexplained_mentions(by_name: Mapping[str, Feature], package: Path = PACKAGE) -> list[str]:
    """Returns the mentions that are not allowed."""
    return [
        f"{feature.name} in {line}"
        for feature in by_name.values()
        for line in mentions(feature, package)
        if not is_inside(line.file, ALLOWED_MENTIONS.get(feature.name, {}))
    ]


def unused_allowances(by_name: Mapping[str, Feature], package: Path = PACKAGE) -> list[str]:
    """Returns the entries of `ALLOWED_MENTIONS` without a mention."""
    return [
        f"{name} in {place}"
        for name, places in ALLOWED_MENTIONS.items()
        for place in places
        if not any(is_inside(line.file, [place]) for line in mentions(by_name[name], package))
    ]


@functools.cache
def _words(name: str) -> FeatureWords:
    builtin = builtin_words().get(name.replace("-", "_"), {})
    words = [name.replace("-", "_"), *builtin.get("words", ())]
    return FeatureWords(name, words, builtin.get("unless", ()))


@functools.lru_cache(maxsize=1024)
def _names(source: str) -> tuple[tuple[int, str], ...]:
    """Returns every identifier and every one-word string, each with its line."""
    return tuple(_walk(ast.parse(source)))


def _walk(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.alias(name=name):
                yield node.lineno, name
            case ast.keyword(arg=str(name), value=value):
                yield value.lineno, name
            case ast.Constant(value=str(name)) if not name.count(" "):
                yield node.lineno, name
