"""Distillation from a run: `--with distill:path=runs/large`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "distill",
    kind="adaptation",
    files=("layers/loss/distillation.py",),
    needs={"dovetail.layers:AnyLoss": "there is no loss to add a teacher's to"},
    excludes={"dovetail.layers.loss.distillation:DistillationLoss": "one teacher is enough"},
)
def from_a_teacher(
    config: Any, path: str = "", weight: float = 1.0, temperature: float = 1.0
) -> Any:
    """The model of a run teaches; without one, this model as it begins, from a run or from nothing.

    Such a teacher of itself holds a model close to its beginning while it learns something new.
    """
    from dovetail.layers import AnyLoss
    from dovetail.layers.loss.distillation import DistillationLoss

    path, teacher = _teacher(config, path)
    loss = DistillationLoss.Config(teacher=teacher, weight=weight, temperature=temperature)
    config = replace(config, AnyLoss, loss)
    config.start = _start(config.start, path)
    config.learner.frozen = (*config.learner.frozen, "loss/teacher/*")
    return config


def _teacher(config: Any, path: str) -> tuple[str, Any]:
    """Returns where the teacher comes from, and its model; its own loss is of no use."""
    import dovetail.models  # noqa: F401  # the parts that a run's config may name
    from dovetail.layers import NextTokenLoss
    from dovetail.runtime import RunFolder

    path = path or getattr(config.start, "run", None) or ""
    model = config.model
    if path:
        run = RunFolder(Path(path))
        run.about()  # says so if this is no run folder
        model = getattr(run.config(), "model")  # noqa: B009  # a run's config is a trainer's
    return path, model.clone(loss=NextTokenLoss.Config())


def _start(student: Any, path: str) -> Any:
    """Returns how both begin: the teacher as a run left it, or as the student begins."""
    from dovetail.trainer import PartAsModel, PartFromRun

    if path:
        return PartFromRun.Config(part="loss/teacher", source=path, rest=student)
    return PartAsModel.Config(part="loss/teacher", rest=student)
