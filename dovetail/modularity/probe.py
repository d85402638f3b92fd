"""What a copy of the package looks like from inside: run as a program in a scratch copy.

`python -m dovetail.modularity.probe wholes NAME...` tells what experiments resolve to, with all
defaults and parameters; `programs NAME...` what their tiny forms compute, training and decoding.
Both first import every file, and where one cannot be, tell that alone. What they print is JSON.
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
    """Prints which files cannot be imported, or else the answer."""
    answers: dict[str, Any] = {"wholes": wholes, "programs": programs}
    failed = imports()
    print(json.dumps({"failed": failed, "found": {} if failed else answers[what](*names)}))


def imports() -> dict[str, str]:
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


def wholes(*names: str) -> dict[str, str]:
    """Returns a hash of what each experiment resolves to, or the error.

    That is every value, defaults too, and the specs of all parameters and variables; variants
    share the specs of what they are variants of, or get others by features that are named.
    """
    from dovetail.experiments import experiments

    known = experiments()
    return {name: _hash(lambda name=name: whole_text(known[name])) for name in names}


def whole_text(experiment: Any) -> str:
    """Writes all values of an experiment, and what its parameters are."""
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
    """Returns a spec with its initializer as the values that made it."""
    from dovetail.config import all_values

    return type(spec).__name__, {**vars(spec), "init": all_values(spec.init.config)}


def programs(*names: str) -> dict[str, str]:
    """Returns a hash of the training step that each tiny form computes, or the error."""
    from dovetail.experiments import experiments
    from dovetail.modularity.pairs import decoding_jaxpr

    known = experiments()

    def program(name: str) -> str:
        trainer = known[name].tiny().set(writers={}, evaluators={}).build()
        programs = (trainer.program().traced.jaxpr, decoding_jaxpr(trainer))
        return _ADDRESS.sub("", "\n".join(map(str, programs)))

    return {name: _hash(lambda name=name: program(name)) for name in names}


def hashed(text: str) -> str:
    """Returns a text in short."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_hash(answer: str) -> bool:
    """Says whether an answer is a text in short, and not an error."""
    return re.fullmatch("[0-9a-f]{64}", answer) is not None


def _hash(make: Any) -> str:
    try:
        return hashed(make())
    except Exception as error:  # noqa: BLE001  # the answer is that it does not work
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
