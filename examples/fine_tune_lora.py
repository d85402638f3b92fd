"""Import a model from Hugging Face files, fine-tune it with LoRA, and export the adapters.

python examples/fine_tune_lora.py ./Qwen3-0.6B   # a folder of your own
python examples/fine_tune_lora.py                # makes a small model first

It makes the folders small-model, runs/imported, runs/tuned, adapters and merged. Imports and
exports overwrite nothing, so remove them before you run it again.
"""

import sys
from pathlib import Path

import dovetail


def main(model: str | None = None, *changes: str) -> dovetail.Run:
    if model is None:
        small = dovetail.experiment("tiny-lm").override(*changes).train(steps=20)
        model = str(small.export_hf("small-model").folder)
    dovetail.import_hf(model, "runs/imported")
    experiment = dovetail.experiment("tiny-lm").with_features(
        "from-run:path=runs/imported", "lora:rank=4,alpha=8"
    )
    run = experiment.override(*changes).train(steps=20, folder="runs/tuned")
    run.export_adapter("adapters")  # for peft
    run.export_hf("merged")  # for transformers
    print(sorted(path.name for path in Path("adapters").iterdir()))
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
