"""Export a run for other programs.

  dovetail export hf runs/qwen --to ./out

Writes config.json, safetensors files, the tokenizer and generation_config.json, which transformers
loads with from_pretrained("./out") and no other code. Adapters are merged into the weights; with
--adapter they are written alone, as peft loads them onto the model that they were trained on.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from pathlib import Path

from dovetail.cli.experiment import add_import_argument, local_folder
from dovetail.cli.output import print_json, say
from dovetail.config import ConfigError
from dovetail.utils import Progress, format_bytes, plural

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    formats = parser.add_subparsers(title="formats", metavar="FORMAT", required=True)
    hf = formats.add_parser("hf", help="the files that Hugging Face's transformers reads")
    hf.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder")
    hf.add_argument(
        "--to",
        dest="target",
        type=local_folder,
        required=True,
        metavar="PATH",
        help="the new folder",
    )
    hf.add_argument("--shard-size", help="the largest file, such as 2GB; default: 5GB")
    hf.add_argument("--dtype", help="the type to write, such as bfloat16; default: as stored")
    hf.add_argument(
        "--family",
        help="the model family to export as; default: one that represents the model exactly",
    )
    hf.add_argument(
        "--adapter", action="store_true", help="write only the adapters, as PEFT loads them"
    )
    add_import_argument(hf)
    hf.add_argument("--json", action="store_true", help="print JSON")
    hf.set_defaults(handler=_export_hf)


def _export_hf(arguments: argparse.Namespace) -> int:
    if arguments.adapter and arguments.shard_size is not None:
        raise ConfigError("--shard-size: adapters are one file; leave it out with --adapter.")
    shard_bytes = _bytes(arguments.shard_size or "5GB")
    with Progress("export hf", enabled=not arguments.json) as progress:
        progress.stage("loading")
        from dovetail.run import Run, run_path

        run = Run(run_path(arguments.run_folder), imports=arguments.imports)
    options = {"dtype": arguments.dtype, "family": arguments.family}
    if arguments.adapter:
        made = run.export_adapter(arguments.target, **options)
    else:
        made = run.export_hf(arguments.target, shard_bytes=shard_bytes, **options)
    if arguments.json:
        print_json(asdict(made))
        return 0
    print(
        f"{made.family}: step {made.step}, {plural(made.tensors, 'tensor')}, "
        f"{format_bytes(made.bytes)}; in {made.folder}"
    )
    if made.is_text and not made.tokenizer and not arguments.adapter:
        say("The run has no tokenizer.json, so none is exported.")
    return 0


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]B|)", text.strip().upper())
    number = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if number < 1:
        raise ConfigError(f"--shard-size: expected a size such as 5GB or 500MB, got {text!r}.")
    return number
