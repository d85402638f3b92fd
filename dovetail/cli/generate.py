"""Generate text with a trained model.

dovetail generate runs/tiny-lm --prompt "def main("
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.experiment import ENTRY_POINTS, load_all_components, require_imports
from dovetail.cli.output import check_number, print_json
from dovetail.config import ConfigError
from dovetail.utils import Progress

if TYPE_CHECKING:
    from dovetail.generate import Generator
    from dovetail.parallel import AxisRules, Placement
    from dovetail.runtime import RunFolder


_MAX_TOKENS = 2**24  # more than any model can attend to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "run_folder", type=Path, metavar="RUN", help="a run folder, such as runs/tiny-lm"
    )
    parser.add_argument(
        "--prompt", default="import", help="the text to continue; '-' reads it from stdin"
    )
    parser.add_argument(
        "--tokens", type=int, default=128, help="the maximum number of new tokens (128)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="sampling temperature (0.8); 0 is greedy"
    )
    parser.add_argument("--top-k", type=int, help="sample from the K most probable tokens")
    parser.add_argument(
        "--top-p",
        type=float,
        help="nucleus sampling: sample from the smallest set of tokens with this probability",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop at this text"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="imports your own package, if the run was trained with it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object when done")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Streams text to standard output."""
    check_number("--tokens", arguments.tokens, 1, _MAX_TOKENS)
    check_number("--temperature", arguments.temperature, 0)
    check_number("--top-k", arguments.top_k, 1)
    check_number("--top-p", arguments.top_p, 0, 1)
    check_number("--seed", arguments.seed, -(2**31), 2**32 - 1)
    prompt = _prompt(arguments.prompt)
    with Progress(str(arguments.run_folder), enabled=not arguments.json) as progress:
        progress.stage("loading the model")
        return _generate(arguments, prompt, progress)


def _prompt(text: str) -> str:
    """Returns the prompt, read from standard input for `-`."""
    if text == "-":
        if sys.stdin is None:
            raise ConfigError("--prompt -: standard input is closed.")
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of the shell that are not UTF-8
        raise ConfigError(f"--prompt: expected UTF-8 text, got {text!r}.") from error
    return text


def _generate(arguments: argparse.Namespace, prompt: str, progress: Progress) -> int:
    from dovetail.runtime import RunFolder, use_compilation_cache

    use_compilation_cache()
    folder = RunFolder(arguments.run_folder)
    require_imports(folder, arguments.imports)
    load_all_components()
    step, generator, stop_tokens = _load(folder, prompt, arguments.tokens)
    progress.stage("compiling, and reading the prompt")
    options = {
        "max_new_tokens": arguments.tokens,
        "sampler": _sampler(arguments),
        "stop_tokens": stop_tokens,
        "stop_strings": arguments.stop,
        "seed": arguments.seed,
    }
    if arguments.json:
        (result,) = generator.generate([prompt], **options)
        print_json(
            {"step": step, "prompt": prompt, "text": result.text, "stopped": result.finish_reason}
        )
        return 0
    pending = prompt  # printed with the first chunk, which shows that all options are valid
    for chunk in generator.stream([prompt], **options):
        progress.close()
        print(pending, chunk.text or "", sep="", end="", flush=True)
        pending = ""
    print(pending)
    return 0


def _config(folder: RunFolder) -> Any:
    """Reads the run's config; an error names the installed package that may be missing."""
    try:
        return folder.config()
    except ConfigError as error:
        provided = {point.module for point in metadata.entry_points(group=ENTRY_POINTS)}
        missing = [name for name in folder.about().get("entry_points", []) if name not in provided]
        if not missing:
            raise
        raise ConfigError(
            f"{error} The run was trained with an installed package that provides the module "
            f"{missing[0]!r}. It is not installed here; install it."
        ) from error


def _load(folder: RunFolder, prompt: str, tokens: int) -> tuple[int, Generator, list[int]]:
    """Returns the step, a generator with the parameters, and the stop tokens."""
    from dovetail.generate import Generator
    from dovetail.interop import stop_tokens
    from dovetail.module import parameter_specs, variable_specs

    trainer = _config(folder).build()
    tokenizer = _tokenizer(folder, trainer)
    params, variables = parameter_specs(trainer.model), variable_specs(trainer.model)
    specs = {**params, **variables}
    placement = _local_placement(trainer.rules, specs)
    step, arrays = _restore(folder, trainer.checkpointer, specs, placement)
    generator = Generator(
        trainer.model.config,
        {path: arrays[path] for path in params},
        length=len(tokenizer.encode(prompt)) + tokens,
        variables={path: arrays[path] for path in variables},
        tokenizer=tokenizer,
        placement=placement,
    )
    return step, generator, stop_tokens(folder, tokenizer.end_of_text)


def _tokenizer(folder: RunFolder, trainer: Any) -> Any:
    """Returns the tokenizer: the run's own files, or the one that its corpus gives."""
    if folder.tokenizer.is_dir() or "imported" in folder.about():
        return trainer.input.load_tokenizer(folder.tokenizer)
    _check_data(folder, trainer.input.prepare().folder.name)
    return trainer.input.tokenizer


def _check_data(folder: RunFolder, now: str) -> None:
    before = folder.about().get("data")
    if before is not None and before != now:
        raise ConfigError(
            f"{folder.path}: the corpus has changed since this run was trained (its data was "
            f"{before}, now it is {now}), so the tokenizer may differ and the text would be "
            "nonsense. Restore the corpus, or train again."
        )


def _local_placement(rules: AxisRules, specs: dict[str, Any]) -> Placement:
    """Shards parameters over as many local devices as divide all of them, at least 1."""
    import jax

    from dovetail.parallel import MeshLayout, Placement

    layout, devices = MeshLayout.Config().build(), jax.local_devices()
    while len(devices) > 1:
        placement = Placement(layout.mesh(devices), rules)
        with contextlib.suppress(ConfigError):  # an axis that does not divide
            _structs(specs, placement)
            return placement
        devices = devices[:-1]
    return Placement(layout.mesh(devices), rules)


def _structs(specs: dict[str, Any], placement: Placement) -> dict[str, Any]:
    """Returns each array's shape, type and sharding."""
    import jax

    return {
        path: jax.ShapeDtypeStruct(
            spec.shape, spec.dtype, sharding=placement.sharding(spec.axes, spec.shape, path)
        )
        for path, spec in specs.items()
    }


def _restore(
    folder: RunFolder, checkpointer: Any, specs: dict[str, Any], placement: Placement
) -> tuple[int, Any]:
    """Reads the model's arrays from the newest checkpoint, or from imported weights."""
    import jax

    from dovetail.module import VariableSpec
    from dovetail.runtime import read_parameters

    like = _structs(specs, placement)
    found = read_parameters(folder, like, checkpointer)
    if found is None:
        raise ConfigError(f"{folder.path} has no checkpoint yet. Train first: `dovetail train`.")
    step, arrays = found
    missing = sorted(like.keys() - arrays.keys())
    if not step:  # imported weights have no variables
        fresh = [path for path in missing if isinstance(specs[path], VariableSpec)]
        initial = {path: specs[path].initial(jax.random.key(0), path) for path in fresh}
        arrays |= {path: jax.device_put(initial[path], like[path].sharding) for path in fresh}
        missing = [path for path in missing if path not in arrays]
    if missing:
        raise ConfigError(
            f"{folder.path}: its checkpoint of step {step} lacks {len(missing)} of the model's "
            f"parameters, such as {missing[0]!r}: config.txt or the model's code has changed "
            "since. Restore them, or train again."
        )
    return step, arrays


def _sampler(arguments: argparse.Namespace) -> Any:
    from dovetail.generate import Greedy, Sampling

    if arguments.temperature == 0:
        return Greedy.Config()
    return Sampling.Config(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p
    )
