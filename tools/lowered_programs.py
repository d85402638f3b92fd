"""Hash the lowered programs of every tiny model family: a refactoring must leave them unchanged.

    python tools/lowered_programs.py --write before.json     # on the commit before
    python tools/lowered_programs.py --against before.json   # on the commit after

For each family it lowers the training step on one CPU device, the same step on a mesh of eight
(data 2 x fsdp 2 x model 2), prefill and decode. Names of functions and arguments are normalised, so
that only the computation counts. Exit code 1 means that a program differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> int:
    """Write or compare the hashes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="write the hashes to this file")
    parser.add_argument("--against", type=Path, help="compare with the hashes in this file")
    parser.add_argument("--text", type=Path, help="also write the normalised programs here")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    hashes = {}
    for name, text in _programs():
        hashes[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        print(f"{name}: {hashes[name]}", flush=True)
        if options.text:
            options.text.mkdir(parents=True, exist_ok=True)
            (options.text / f"{name.replace(' ', '_')}.txt").write_text(text)
    if options.write:
        options.write.write_text(json.dumps(hashes, indent=1))
    if not options.against:
        return 0
    before = json.loads(options.against.read_text())
    differ = sorted(name for name in before | hashes if before.get(name) != hashes.get(name))
    print(f"{len(hashes)} programs, {len(differ)} differ: {', '.join(differ) or 'none'}")
    return 1 if differ else 0


def _programs() -> Any:
    """Yield (name, normalised text) of each program."""
    from dovetail.experiments import find_experiment
    from tests.experiments.tiny_models import TINY_MODELS

    for form in TINY_MODELS:
        config = find_experiment(form).tiny()
        single = config.build().program(tuple(jax.devices()[:1]))
        yield f"{form} step", normalised(single.lowered.as_text())
        config.mesh.set(data=2, fsdp=2, model=2)
        try:
            yield f"{form} sharded", normalised(config.build().program().lowered.as_text())
        except Exception as error:  # noqa: BLE001  # a tiny form that does not divide says so
            yield f"{form} sharded", type(error).__name__
        for kind, lowered in _generation(config):
            yield f"{form} {kind}", normalised(lowered.as_text())


def _generation(config: Any) -> Any:
    """Yield the lowered prefill and decode programs of a trainer's model."""
    import jax.numpy as jnp

    from dovetail.generate import Generator, Greedy
    from dovetail.module import parameter_specs, variable_specs

    model = config.build().model
    params, variables = (
        {path: jnp.zeros(spec.shape, spec.dtype) for path, spec in specs.items()}
        for specs in (parameter_specs(model), variable_specs(model))
    )
    generator = Generator(model.config, params, length=16, variables=variables)
    programs = generator._programs_for(Greedy.Config())
    tokens, lengths = jnp.ones((2, 8), jnp.int32), jnp.full((2,), 8)
    arguments = (
        generator._state,
        jax.random.key(0),
        tokens,
        lengths,
        lengths,
        jnp.zeros((1,), int),
    )
    yield "prefill", programs._prefill.lower(*arguments)
    decode_state, _ = jax.eval_shape(programs._prefill, *arguments)
    decoder = jax.jit(programs._decode_chunk, donate_argnums=(1,))
    yield "decode", decoder.lower(generator._state, decode_state, jnp.zeros((1,), int), 4)


def normalised(text: str) -> str:
    """Number the functions by first use, and drop the names of arguments and results."""
    text = re.sub(r'jax\.(result_info|arg_info) = "[^"]*",? ?', "", text)
    text = re.sub(r"module @\S+", "module @m", text)
    numbers: dict[str, str] = {}
    return re.sub(r"@[\w.$-]+", lambda m: numbers.setdefault(m[0], f"@f{len(numbers)}"), text)


if __name__ == "__main__":
    sys.exit(main())
