"""Give every feed-forward layer of an experiment an activation of your own, in one class.

    python examples/own_layer.py

No model mentions the layer. It is sharded by its logical axes, saved, resumed and generated from
like any other. From the command line, in this folder:

    dovetail train tiny-lm --import own_layer --with squared-relu-example
"""

import sys

import jax

import dovetail
from dovetail.config import modifier, replace
from dovetail.layers import BaseFeedForward
from dovetail.module import parameter


class SquaredReLU(BaseFeedForward):
    """A feed-forward layer without a gate: relu(x @ up) ** 2 @ down."""

    class Config(BaseFeedForward.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        shape = (config.width, config.hidden)
        self.up = parameter(shape, ("embed", "mlp"), fan_in=(0,), fan_out=(1,))
        self.down = parameter(shape[::-1], ("mlp", "embed"), fan_in=(0,), fan_out=(1,))

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        return jax.nn.relu(x_BSE @ self.up) ** 2 @ self.down


@modifier("squared-relu-example")
def squared_relu(config):
    """Feed-forward layers with a squared ReLU."""
    return replace(config, BaseFeedForward, SquaredReLU.Config())


def main(*changes: str) -> dovetail.Run:
    experiment = dovetail.experiment("tiny-lm").with_features("squared-relu-example")
    run = experiment.override(*changes).train()
    print(run.generate("def main(", max_new_tokens=64).text)
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
