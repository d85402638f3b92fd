"""Import a model from Hugging Face files.

  dovetail import hf ./Qwen3-0.6B --to runs/qwen
  dovetail import hf hub:Qwen/Qwen3-0.6B --to runs/qwen

Reads config.json, the safetensors files and the tokenizer, and writes a run folder that `generate`,
`export` and `train --with from-run:path=runs/qwen` take. No code of the model is run.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from dovetail.cli.experiment import add_import_argument, local_folder
from dovetail.cli.output import print_json, say
from dovetail.config import import_packages
from dovetail.utils import Progress, format_bytes, format_count, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    formats = parser.add_subparsers(title="formats", metavar="FORMAT", required=True)
    hf = formats.add_parser("hf", help="the files that Hugging Face's transformers writes")
    hf.add_argument(
        "source", metavar="PATH", help="a folder, a URL that fsspec supports, or hub:org/name"
    )
    hf.add_argument(
        "--to",
        dest="run",
        type=local_folder,
        required=True,
        metavar="RUN",
        help="the new run folder",
    )
    add_import_argument(hf)
    hf.add_argument("--json", action="store_true", help="print JSON")
    hf.set_defaults(handler=_import_hf)


def _import_hf(arguments: argparse.Namespace) -> int:
    with Progress("import hf", enabled=not arguments.json) as progress:
        progress.stage("loading")
        from dovetail.interop import import_hf

        import_packages(arguments.imports)
    made = import_hf(arguments.source, arguments.run, imports=arguments.imports)
    if arguments.json:
        print_json(asdict(made))
        return 0
    print(
        f"{made.family}: {format_count(made.parameters)} parameters in "
        f"{plural(made.tensors, 'tensor')}, {format_bytes(made.bytes)}; in {made.run}"
    )
    if made.is_text and not made.tokenizer:
        say("There is no tokenizer.json beside the weights, so `dovetail generate` needs one.")
    return 0
