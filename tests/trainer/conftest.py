"""A small corpus and a small experiment that every test here trains."""

import pytest

from dovetail.data import ByteTokenizer, TextFiles, TokenInput
from dovetail.learner import ConstantSchedule, Learner
from dovetail.models.llama import llama
from dovetail.parallel import MeshLayout
from dovetail.runtime import Checkpointer, JsonLines
from dovetail.trainer import Trainer


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(40):
        lines = [f"def function_{number}_{line}(x):\n    return x + {line}\n" for line in range(12)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return TextFiles.Config(files=str(folder))


@pytest.fixture
def config(corpus):
    return Trainer.Config(
        model=llama(width=16, num_layers=2, num_heads=2, hidden=32, tied=True, vocab_size=264),
        input=TokenInput.Config(
            corpus=corpus, tokenizer=ByteTokenizer.Config(), sequence_length=16, batch_size=8
        ),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=3e-3)),
        steps=12,
        checkpointer=Checkpointer.Config(every=4),
        writers={"json": JsonLines.Config()},
        mesh=MeshLayout.Config(data=2, fsdp=2, model=2),
    )
