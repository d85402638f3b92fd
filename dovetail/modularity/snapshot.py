"""A snapshot of a copy of the package, printed as JSON by a program that runs in that copy.

`python -m dovetail.modularity.snapshot configs NAME...` hashes what experiments resolve to, with
all defaults and parameter specs; `programs NAME...` hashes the training and decoding steps of their
tiny models. Both import every file first; if any fails, they print only the import errors.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def main(what: str, *names: str) -> None:
    """Prints the snapshot."""
    hash_all: dict[str, Any] = {"configs": config_hashes, "programs": program_hashes}
    errors = import_errors()
    hashes = {} if errors else hash_all[what](*names)
    print(json.dumps({"import_errors": errors, "hashes": hashes}))


def import_errors() -> dict[str, str]:
    """Returns the files that cannot be imported, each with the error."""
    package = Path(__file__).parents[1]
    failed = {}
    for file in sorted(package.rglob("*.py")):
        pieces = ("dovetail", *file.relative_to(package).with_suffix("").parts)
        try:
            importlib.import_module(".".join(pieces).removesuffix(".__init__"))
        except ImportError as error:
            failed[str(file.relative_to(package))] = str(error)
    return failed


def config_hashes(*names: str) -> dict[str, str]:
    """Returns the hash of `resolved_text` for each experiment, or the error."""
    from dovetail.experiments import experiments

    by_name = experiments()
    return {name: _hash_or_error(lambda name=name: resolved_text(by_name[name])) for name in names}


def resolved_text(experiment: Any) -> str:
    """Returns every value of an experiment, defaults included, and its parameter specs.

    Variants have the specs of the experiment that they vary, or change them by named features.
    """
    from dovetail.config import all_values
    from dovetail.module import parameter_specs, variable_specs

    config = experiment.config()
    lines = [f"{path} = {value}" for path, value in all_values(config).items()]
    if not experiment.variant_of:
        model = config.build().model
        specs: dict[str, Any] = {**parameter_specs(model), **variable_specs(model)}
        lines += [f"{path}: {_ADDRESS.sub('', str(_plain(one)))}" for path, one in specs.items()]
    return "\n".join(lines)


def _plain(spec: Any) -> Any:
    """Returns a spec with its initializer as config values."""
    from dovetail.config import all_values

    return type(spec).__name__, {**vars(spec), "init": all_values(spec.init.config)}


def program_hashes(*names: str) -> dict[str, str]:
    """Returns the hash of each tiny model's training and decoding jaxprs, or the error."""
    from dovetail.experiments import experiments
    from dovetail.modularity.pairs import decoding_jaxpr

    by_name = experiments()

    def program(name: str) -> str:
        trainer = by_name[name].tiny().set(writers={}, evaluators={}).build()
        programs = (trainer.program().traced.jaxpr, decoding_jaxpr(trainer))
        return _ADDRESS.sub("", "\n".join(map(str, programs)))

    return {name: _hash_or_error(lambda name=name: program(name)) for name in names}


def hash_text(text: str) -> str:
    """Returns the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_hash(answer: str) -> bool:
    """Says whether an answer is a hash, and not an error."""
    return re.fullmatch("[0-9a-f]{64}", answer) is not None


def _hash_or_error(make: Any) -> str:
    try:
        return hash_text(make())
    except Exception as error:  # noqa: BLE001  # the error is the answer
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
