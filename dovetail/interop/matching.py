"""Finding the family whose format can say a model: by trying, for families are only data here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import Config, ConfigError, all_values
from dovetail.models import CausalLM, Family, families
from dovetail.module import Tensor, match_weights, parameter_specs, variable_specs

# Fields, anywhere in a tree, that do not change which function of tokens a trained model is.
_NO_MATTER = frozenset({"weight_init", "loss", "remat", "unroll", "dtype", "dropout"})

# How far a family is from a model that it does not say; less are as many values as differ.
_REFUSED, _ALIEN = 10**6, 10**7
_LISTED = 10


def model_tensors(family: Family, model: CausalLM) -> dict[str, Tensor]:
    """Returns every tensor that the files of a model of this family hold, by name."""
    variables = variable_specs(model)
    specs = {**parameter_specs(model), **variables}
    return match_weights(family.weights, specs, optional=list(variables))


def family_of(config: Config[Any], first: str = "") -> tuple[Family, dict[str, Any]]:
    """Returns a family that says exactly this model, and the model in its words.

    Args:
        config: the model.
        first: the `model_type` to try first: several families may say the same model.
    """
    refusals: list[tuple[int, str]] = []
    for family in sorted(families().values(), key=lambda family: family.model_type != first):
        try:
            said, changes = say(family, config)
        except ConfigError as error:
            refusals.append((_REFUSED, f"{family.name}: {error}"))
        except Exception as error:  # noqa: BLE001  # a family expects its own parts in a model
            refusals.append((_ALIEN, f"{family.name} expects other parts ({error})"))
        else:
            if not changes:
                return family, said
            listed = "\n  ".join(changes[:_LISTED])
            told = f"{family.name} comes nearest; with it the model would change:\n  {listed}"
            refusals.append((len(changes), told))
    raise ConfigError(
        "No known format says exactly this model, so other programs would compute something else. "
        + min(refusals, default=(0, "There are no families."))[1]
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
