"""Finding the family whose format can say a model: by trying, for families are only data here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import Config, ConfigError, all_values
from dovetail.models import CausalLM, Family, families
from dovetail.module import Tensor, match_weights, parameter_specs, variable_specs

# Fields, anywhere in a tree, that do not change which function of tokens a trained model is.
_NO_MATTER = frozenset({"weight_init", "loss", "remat", "unroll", "dtype", "dropout"})


def model_tensors(family: Family, model: CausalLM) -> dict[str, Tensor]:
    """Returns every tensor that the files of a model of this family hold, by name."""
    variables = variable_specs(model)
    specs = {**parameter_specs(model), **variables}
    return match_weights(family.weights, specs, optional=list(variables))


def family_of(config: Config[Any]) -> tuple[Family, dict[str, Any]]:
    """Returns the family that says exactly this model, and the model in its words."""
    nearest: tuple[int, str] | None = None
    for family in families().values():
        try:
            said, differences = say(family, config)
        except ConfigError as error:
            nearest = min(nearest or (10**9, ""), (10**6, f"{family.name}: {error}"))
            continue
        if not differences:
            return family, said
        listed = "\n  ".join(differences[:10])
        what = f"{family.name} comes nearest; with it the model would change:\n  {listed}"
        nearest = min(nearest or (10**9, ""), (len(differences), what))
    raise ConfigError(
        "No known format says exactly this model, so other programs would compute something else. "
        + (nearest[1] if nearest else "There are no families.")
    )


def say(family: Family, config: Any) -> tuple[dict[str, Any], list[str]]:
    """Says a model in a family's words, and returns what would differ when it is read back."""
    said = family.to_hf(config)
    return said, differences(config, family.from_hf(said))


def differences(here: Config[Any], there: Config[Any]) -> list[str]:
    """Returns the values in which two models compute differently, as lines for people."""
    before, after = _that_matter(all_values(here)), _that_matter(all_values(there))
    return [
        f"{path or '(root)'}: {before.get(path, '(absent)')} -> {after.get(path, '(absent)')}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


def _that_matter(values: Mapping[str, str]) -> dict[str, str]:
    return {path: v for path, v in values.items() if not _NO_MATTER & set(path.split("."))}
