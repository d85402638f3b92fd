"""Language models for a laptop, trained on the source code of Python's standard library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.config import apply_modifier
from dovetail.experiments.registry import experiment

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

_EVERY_OTHER = "mamba2:every=2"


def _language_model(
    *,
    width: int,
    num_layers: int,
    num_heads: int,
    hidden: int,
    vocab_size: int,
    sequence_length: int,
    batch_size: int,
    steps: int,
    learning_rate: float,
) -> Trainer.Config:
    from dovetail.data import BytePairTokenizer, PythonLines, TokenInput
    from dovetail.learner import CosineSchedule, Learner, Muon
    from dovetail.models.llama import llama
    from dovetail.runtime import Checkpointer
    from dovetail.trainer import ByteTrigram, HeldOutLoss, Samples, Trainer

    sizes = {"width": width, "num_layers": num_layers, "num_heads": num_heads, "hidden": hidden}
    return Trainer.Config(
        model=llama(**sizes, tied=True),
        input=TokenInput.Config(
            tokenizer=BytePairTokenizer.Config(vocab_size=vocab_size),
            sequence_length=sequence_length,
            batch_size=batch_size,
        ),
        learner=Learner.Config(
            optimizer=Muon.Config(),
            schedule=CosineSchedule.Config(peak=learning_rate, warmup_fraction=0.05),
            weight_decay=0.1,
        ),
        steps=steps,
        evaluators={
            "held_out": HeldOutLoss.Config(every=max(1, steps // 4), num_batches=16),
            "trigram": ByteTrigram.Config(),
            "samples": Samples.Config(judges={"python_lines": PythonLines.Config()}),
        },
        checkpointer=Checkpointer.Config(every=max(1, steps // 4)),
    )


def _tiny_form() -> Trainer.Config:
    return _language_model(
        width=32,
        num_layers=2,
        num_heads=2,
        hidden=64,
        vocab_size=300,
        sequence_length=32,
        batch_size=8,
        steps=4,
        learning_rate=1e-3,
    )


@experiment(
    "tiny-lm",
    "a 2-minute language model of Python, on any laptop",
    tiny=_tiny_form,
    family="laptop",
)
def tiny_lm() -> Trainer.Config:
    """Returns the experiment of the quick start."""
    return _language_model(
        width=128,
        num_layers=4,
        num_heads=2,
        hidden=352,
        vocab_size=2048,
        sequence_length=256,
        batch_size=8,
        steps=240,
        learning_rate=1e-2,
    )


@experiment("small-lm", "tiny-lm at ten times the compute", tiny=_tiny_form, family="laptop")
def small_lm() -> Trainer.Config:
    """Returns the experiment at ten times the compute."""
    return _language_model(
        width=256,
        num_layers=6,
        num_heads=4,
        hidden=704,
        vocab_size=4096,
        sequence_length=256,
        batch_size=8,
        steps=500,
        learning_rate=7e-3,
    )


@experiment(
    "tiny-hybrid",
    "tiny-lm, with every other layer recurrent (Mamba-2)",
    tiny=lambda: apply_modifier(_tiny_form(), _EVERY_OTHER),
    family="laptop",
)
def tiny_hybrid() -> Trainer.Config:
    """Returns tiny-lm with recurrent layers beside attention."""
    return apply_modifier(tiny_lm(), _EVERY_OTHER)
