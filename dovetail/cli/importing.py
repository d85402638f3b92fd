"""Import a model that others trained.

  dovetail import hf ./Qwen3-0.6B --to runs/qwen
  dovetail import hf hub:Qwen/Qwen3-0.6B --to runs/qwen

Reads config.json, the safetensors files and the tokenizer, and writes a run folder that `generate`,
`export` and `train --with from-run:path=runs/qwen` take. No code of the model is run.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from dovetail.cli.experiment import add_import_argument, import_packages, local_folder
from dovetail.cli.output import count, print_json, say, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    formats = parser.add_subparsers(title="formats", metavar="FORMAT", required=True)
    hf = formats.add_parser("hf", help="the files that Hugging Face's transformers writes")
    hf.add_argument(
        "source", metavar="PATH", help="a folder, a URL that fsspec knows, or hub:org/name"
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
    from dovetail.interop import import_hf

    import_packages(arguments.imports)
    made = import_hf(arguments.source, arguments.run)
    if arguments.json:
        print_json(asdict(made))
        return 0
    print(
        f"{made.family}: {count(made.parameters)} parameters in {made.tensors} tensors, "
        f"{size(made.bytes)}; in {made.run}"
    )
    if not made.tokenizer:
        say("There is no tokenizer.json beside the weights, so `dovetail generate` cannot use it.")
    return 0
