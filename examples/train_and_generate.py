"""Train a language model on your CPU, then generate text with it. It takes about two minutes.

python examples/train_and_generate.py
python examples/train_and_generate.py steps=100 learner.schedule.peak=0.02
"""

import sys

import dovetail


def main(*changes: str) -> dovetail.Run:
    run = dovetail.experiment("tiny-lm").override(*changes).train()
    print(run.generate("def main(", max_new_tokens=64).text)
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
