"""What a copy of the package looks like from inside: run as a program in a scratch copy.

`python -m dovetail.modularity.probe imports` tells which files cannot be imported; `texts` what
experiments resolve to; `programs NAME...` what their tiny forms compute. Each prints JSON.
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
    """Prints one answer."""
    answers: dict[str, Any] = {"imports": imports, "texts": texts, "programs": programs}
    print(json.dumps(answers[what](*names)))


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


def texts(*names: str) -> dict[str, str]:
    """Returns a hash of what each experiment resolves to, or the error."""
    from dovetail.config import to_text
    from dovetail.experiments import experiments

    known = experiments()
    return {name: _hash(lambda name=name: to_text(known[name].config())) for name in names}


def programs(*names: str) -> dict[str, str]:
    """Returns a hash of the training step that each tiny form computes, or the error."""
    from dovetail.experiments import experiments

    known = experiments()

    def program(name: str) -> str:
        config = known[name].tiny().set(writers={}, evaluators={})
        return _ADDRESS.sub("", str(config.build().program().traced.jaxpr))

    return {name: _hash(lambda name=name: program(name)) for name in names}


def hashed(text: str) -> str:
    """Returns a text in short."""
    return hashlib.sha256(text.encode()).hexdigest()


def _hash(make: Any) -> str:
    try:
        return hashed(make())
    except Exception as error:  # noqa: BLE001  # the answer is that it does not work
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
