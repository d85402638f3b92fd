"""Knowledge distillation from a run: `--with distill:path=runs/large`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "distill",
    files=("layers/loss/distillation.py",),
    needs={"dovetail.layers:BaseLoss": "there is no loss to add the distillation loss to"},
    excludes={"dovetail.layers.loss.distillation:DistillationLoss": "it applies only once"},
)
def distill(config: Any, path: str = "", weight: float = 1.0, temperature: float = 1.0) -> Any:
    """Knowledge distillation from the model of a run.

    Without `path`, the teacher is the student at its initialization, from a run or from scratch.
    This keeps a fine-tuned model close to the original.
    """
    from dovetail.layers import BaseLoss
    from dovetail.layers.loss.distillation import DistillationLoss

    path, teacher = _teacher(config, path)
    loss = DistillationLoss.Config(teacher=teacher, weight=weight, temperature=temperature)
    config = replace(config, BaseLoss, loss)
    config.initialization = _initialization(config.initialization, path)
    config.learner.frozen = (*config.learner.frozen, "loss/teacher/*")
    return config


def _teacher(config: Any, path: str) -> tuple[str, Any]:
    """Returns the teacher's run, if any, and its model. The teacher's own loss is not needed."""
    from dovetail.layers import NextTokenLoss
    from dovetail.run import Run

    path = path or getattr(config.initialization, "run", None) or ""
    model = config.model
    if path:
        model = Run(path).config.model
    return path, model.clone(loss=NextTokenLoss.Config())


def _initialization(student: Any, path: str) -> Any:
    """Returns the initialization: the teacher from its run, or as a copy of the student."""
    from dovetail.run import InitSubmoduleFromRun
    from dovetail.trainer import InitSubmoduleFromModel

    if path:
        return InitSubmoduleFromRun.Config(submodule="loss/teacher", source=path, rest=student)
    return InitSubmoduleFromModel.Config(submodule="loss/teacher", rest=student)
