"""Generate text with a trained model.

dovetail generate runs/tiny-lm --prompt "def main("
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dovetail.cli.experiment import add_import_argument
from dovetail.cli.output import check_number, print_json
from dovetail.config import ConfigError
from dovetail.utils import Progress

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
    add_import_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object when done")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Streams text to standard output."""
    check_number("--tokens", arguments.tokens, 1, _MAX_TOKENS)
    check_number("--temperature", arguments.temperature, 0)
    check_number("--top-k", arguments.top_k, 1)
    check_number("--top-p", arguments.top_p, 0, 1)
    check_number("--seed", arguments.seed, -(2**31), 2**32 - 1)
    if not all(arguments.stop):
        raise ConfigError("--stop: an empty text would stop before the first token. Leave it out.")
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
    from dovetail.run import GenerateOptions, Run, run_path

    run = Run(run_path(arguments.run_folder), imports=arguments.imports)
    step = run.step  # loads the parameters
    progress.stage("compiling, and reading the prompt")
    options: GenerateOptions = {
        "max_new_tokens": arguments.tokens,
        "temperature": arguments.temperature,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
        "stop": arguments.stop,
        "seed": arguments.seed,
    }
    if arguments.json:
        result = run.generate(prompt, **options)
        print_json(
            {"step": step, "prompt": prompt, "text": result.text, "stopped": result.finish_reason}
        )
        return 0
    pending = prompt  # printed with the first chunk, which shows that all options are valid
    for chunk in run.stream(prompt, **options):
        progress.close()
        print(pending, chunk.text or "", sep="", end="", flush=True)
        pending = ""
    print(pending)
    return 0
