"""A training loop of your own: as plain as it gets, with everything else from Dovetail.

    python examples/own_trainer_loop.py

The trainer's config is a component like any other, so an experiment may swap it. What it trains is
a run: it is generated from, exported and resumed as usual.
"""

import sys
from pathlib import Path

import dovetail
from dovetail.config import modifier
from dovetail.parallel import use_placement
from dovetail.runtime import StopRequest, abstract_state
from dovetail.trainer import Hooks, Outcome, Trainer


class PlainTrainer(Trainer):
    """Runs one step after another, and saves at the end or when a signal asks to stop."""

    class Config(Trainer.Config):
        pass

    def train(
        self, folder: Path, hooks: Hooks | None = None, stop: StopRequest | None = None
    ) -> Outcome:
        program, stop = self.program(), stop or StopRequest()
        self.checkpointer.open(folder / "checkpoints")
        with stop, use_placement(program.placement):
            like = abstract_state(program.state_shapes, program.state_shardings)
            done, state = self.checkpointer.restore(like) or (0, self.initial_state())
            train_step = program.lowered.compile()
            while done < self.steps and stop.received is None:
                state, report = train_step(state, self.batch(done), program.hyperparameters)
                done += 1
                print(f"step {done}: loss {float(report.loss):.3f}")
            self.checkpointer.save(done, state)
        return Outcome(done, stop.received, saved=self.checkpointer.finish())


@modifier("plain-loop-example")
def plain_loop(config):
    """Trains with a loop of one's own."""
    return PlainTrainer.Config(**{name: getattr(config, name) for name in config.fields()})


def main(*changes: str) -> dovetail.Run:
    experiment = dovetail.experiment("tiny-lm").with_features("plain-loop-example")
    run = experiment.override("steps=20", *changes).train()
    print(run.generate("def main(", max_new_tokens=32).text)
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
