"""Write text with a trained model.

dovetail generate runs/tiny-lm --prompt "def main("
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.experiment import import_packages, load_all_parts
from dovetail.cli.output import print_json
from dovetail.config import ConfigError

if TYPE_CHECKING:
    from dovetail.generate import Generator
    from dovetail.runtime import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "run_folder", type=Path, metavar="RUN", help="a run folder, such as runs/tiny-lm"
    )
    parser.add_argument(
        "--prompt", default="import ", help="what to continue; '-' reads it from stdin"
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
    parser.add_argument("--json", action="store_true", help="print one JSON object when done")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Streams text to standard output."""
    from dovetail.runtime import RunFolder, use_compilation_cache

    use_compilation_cache()
    folder = RunFolder(arguments.run_folder)
    import_packages(folder.about()["imports"])
    load_all_parts()
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    step, generator, end_of_text = _load(folder, prompt, arguments.tokens)
    options = {
        "max_new_tokens": arguments.tokens,
        "sampler": _sampler(arguments),
        "stop_tokens": [end_of_text],
        "stop_texts": arguments.stop,
        "seed": arguments.seed,
    }
    if arguments.json:
        (result,) = generator.generate([prompt], **options)
        print_json({"step": step, "prompt": prompt, "text": result.text, "stopped": result.stopped})
        return 0
    print(prompt, end="", flush=True)
    for piece in generator.stream([prompt], **options):
        print(piece.text, end="", flush=True)
    print()
    return 0


def _load(folder: RunFolder, prompt: str, tokens: int) -> tuple[int, Generator, int]:
    """Returns the trained step, a generator with its parameters, and the token that ends a text."""
    from dovetail.generate import Generator
    from dovetail.learner import averaged_parameters
    from dovetail.runtime import abstract_state

    trainer: Any = folder.config().build()
    program = trainer.program()
    trainer.checkpointer.open(folder.checkpoints)
    like = abstract_state(program.state_shapes, program.state_shardings)
    found = trainer.checkpointer.restore(like)
    if found is None:
        raise ConfigError(f"{folder.path} has no checkpoint yet. Train first: `dovetail train`.")
    step, state = found
    tokenizer = trainer.input.tokenizer
    generator = Generator(
        trainer.model.config,
        averaged_parameters(state),
        length=len(tokenizer.encode(prompt)) + tokens,
        variables=state.variables,
        tokenizer=tokenizer,
        placement=program.placement,
    )
    return step, generator, tokenizer.end_of_text


def _sampler(arguments: argparse.Namespace) -> Any:
    from dovetail.generate import Greedy, Sampling

    if arguments.temperature == 0:
        return Greedy.Config()
    return Sampling.Config(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p
    )
