"""Write text with a trained model.

dovetail generate runs/tiny-lm --prompt "def main("
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.experiment import ENTRY_POINTS, load_all_parts, require_imports
from dovetail.cli.output import print_json
from dovetail.config import ConfigError

if TYPE_CHECKING:
    from dovetail.generate import Generator
    from dovetail.parallel import AxisRules, Placement
    from dovetail.runtime import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "run_folder", type=Path, metavar="RUN", help="a run folder, such as runs/tiny-lm"
    )
    parser.add_argument(
        "--prompt", default="import", help="what to continue; '-' reads it from stdin"
    )
    parser.add_argument("--tokens", type=int, default=128, help="the most new tokens")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 takes the likeliest token"
    )
    parser.add_argument("--top-k", type=int, help="sample among the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, help="sample among the likeliest tokens of this mass"
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
    from dovetail.runtime import RunFolder, use_compilation_cache

    use_compilation_cache()
    folder = RunFolder(arguments.run_folder)
    require_imports(folder, arguments.imports)
    load_all_parts()
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    step, generator, stop_tokens = _load(folder, prompt, arguments.tokens)
    options = {
        "max_new_tokens": arguments.tokens,
        "sampler": _sampler(arguments),
        "stop_tokens": stop_tokens,
        "stop_texts": arguments.stop,
        "seed": arguments.seed,
    }
    if arguments.json:
        (result,) = generator.generate([prompt], **options)
        print_json({"step": step, "prompt": prompt, "text": result.text, "stopped": result.stopped})
        return 0
    unsaid = prompt  # until a first piece shows that all options are good
    for piece in generator.stream([prompt], **options):
        print(unsaid, piece.text or "", sep="", end="", flush=True)
        unsaid = ""
    print(unsaid)
    return 0


def _config(folder: RunFolder) -> Any:
    """Reads the run's config; if that fails, says which installed package may be missing."""
    try:
        return folder.config()
    except ConfigError as error:
        offered = {point.module for point in metadata.entry_points(group=ENTRY_POINTS)}
        gone = [name for name in folder.about().get("entry_points", []) if name not in offered]
        if not gone:
            raise
        raise ConfigError(
            f"{error} The run was trained where a package was installed that offers the module "
            f"{gone[0]!r}; here there is none. Install it."
        ) from error


def _load(folder: RunFolder, prompt: str, tokens: int) -> tuple[int, Generator, list[int]]:
    """Returns the trained step, a generator with its parameters, and the tokens that end a text."""
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
            f"{folder.path}: the corpus has changed since this run was trained (its data were "
            f"{before}, now they are {now}), so the tokenizer may differ and the text would be "
            "nonsense. Bring the corpus back as it was, or train anew."
        )


def _local_placement(rules: AxisRules, specs: dict[str, Any]) -> Placement:
    """Splits parameters over as many devices of this process as divide them all, 1 at worst."""
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
    """Reads what the model needs of the run's newest parameters, and nothing else of them."""
    import jax

    from dovetail.module import VariableSpec
    from dovetail.runtime import read_parameters

    like = _structs(specs, placement)
    found = read_parameters(folder, like, checkpointer)
    if found is None:
        raise ConfigError(f"{folder.path} has no checkpoint yet. Train first: `dovetail train`.")
    step, arrays = found
    missing = sorted(like.keys() - arrays.keys())
    if not step:  # other programs' files know no variables of ours
        fresh = [path for path in missing if isinstance(specs[path], VariableSpec)]
        initial = {path: specs[path].initial(jax.random.key(0), path) for path in fresh}
        arrays |= {path: jax.device_put(initial[path], like[path].sharding) for path in fresh}
        missing = [path for path in missing if path not in arrays]
    if missing:
        raise ConfigError(
            f"{folder.path}: its checkpoint of step {step} lacks {len(missing)} of the model's "
            f"parameters, {missing[0]!r} for one: config.txt or the code of the model has changed "
            "since. Use them as they were, or train anew."
        )
    return step, arrays


def _sampler(arguments: argparse.Namespace) -> Any:
    from dovetail.generate import Greedy, Sampling

    if arguments.temperature == 0:
        return Greedy.Config()
    return Sampling.Config(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p
    )
