"""A run folder is self-contained: moved, with another home and no corpus, it still works."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import dovetail
from dovetail.cli import main
from dovetail.data import data_folder
from dovetail.module import token_batch
from dovetail.parallel import current_placement
from dovetail.runtime.code_version import code_versions

CHANGES = (
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
    "input.tokenizer.vocab_size=300",
    "input.sequence_length=16",
    "input.batch_size=8",
    "evaluators.held_out.num_batches=1",
    "evaluators.samples.max_new_tokens=8",
    "evaluators.samples.samples_per_prompt=1",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


def write_corpus(corpus, operator="+"):
    corpus.mkdir()
    for number in range(40):
        lines = (f"def f{number}_{x}(x):\n    return x {operator} {x}\n" for x in range(9))
        (corpus / f"{number}.txt").write_text("".join(lines))


@pytest.fixture(scope="module")
def experiment(work):
    corpus = work / "corpus"
    write_corpus(corpus)
    files = ("input.corpus=TextFiles", f"input.corpus.files={corpus}")
    return dovetail.experiment("tiny-lm").override(*CHANGES, *files)


@pytest.fixture(scope="module")
def trained(work, experiment):
    return experiment.train(steps=3, folder=work / "run", progress=False)


@pytest.fixture(scope="module")
def moved(work, trained, experiment):
    """The same run elsewhere; corpus and cache are gone (the cache is found through a variable)."""
    before = {
        "text": trained.generate("def f", max_new_tokens=12).text,
        "metrics": trained.evaluate(["held_out"]),
        "logits": np.asarray(trained.logits("def f(x):")),
    }
    again = shutil.copytree(trained.path, work / "again")
    experiment.train(steps=5, folder=again, progress=False)
    before["losses"] = [e["loss"] for e in dovetail.load(again).metrics() if "loss" in e]
    folder = shutil.move(trained.path, work / "other" / "place")
    (work / "corpus").rename(work / "gone")
    before["folder"] = Path(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(work / "other" / "cache"))
        yield before


def test_a_moved_run_generates_evaluates_and_exports(moved, tmp_path):
    run = dovetail.load(moved["folder"])
    assert run.step == 3
    assert run.generate("def f", max_new_tokens=12).text == moved["text"]
    assert "".join(c.text for c in run.stream("def f", max_new_tokens=12)) == moved["text"]
    (twice, _) = run.generate_batch(["def f", "x"], max_new_tokens=12)
    assert twice.text == moved["text"]
    assert run.evaluate(["held_out"]) == moved["metrics"]
    np.testing.assert_array_equal(run.logits("def f(x):"), moved["logits"])
    run.export_hf(tmp_path / "out", progress=False)
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["decoder"]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 299


def test_a_moved_run_is_used_and_continued_from_the_command_line(
    moved, experiment, tmp_path, capsys
):
    folder = str(moved["folder"])
    assert main(["generate", folder, "--prompt", "def f", "--tokens", "12"]) == 0
    assert capsys.readouterr().out == f"def f{moved['text']}\n"
    assert main(["export", "hf", folder, "--to", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["evaluate", folder, "held_out", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated == {"run": folder, "step": 3, "metrics": moved["metrics"]}
    copy = shutil.copytree(folder, tmp_path / "copy")
    changes = [*experiment.overrides, "evaluators={}"]
    assert main(["train", "tiny-lm", *changes, "--steps", "5", "--run", str(copy)]) == 0
    losses = [entry["loss"] for entry in dovetail.load(copy).metrics() if "loss" in entry]
    assert losses == pytest.approx(moved["losses"], rel=1e-6)


def test_a_moved_run_continues_with_the_same_data_in_another_process(moved, experiment, tmp_path):
    folder = shutil.copytree(moved["folder"], tmp_path / "run")
    script = (
        "import dovetail, sys\n"
        "experiment = dovetail.experiment('tiny-lm').override(*sys.argv[2:])\n"
        "run = experiment.train(steps=5, folder=sys.argv[1], progress=False)\n"
        "print([e['loss'] for e in run.metrics() if 'loss' in e])\n"
    )
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", script, str(folder), *experiment.overrides],
        env=os.environ | home | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == pytest.approx(moved["losses"], rel=1e-6)


def test_a_new_run_without_its_corpus_names_it(moved, experiment, tmp_path):
    with pytest.raises(dovetail.Error, match=r"corpus"):
        experiment.train(steps=1, folder=tmp_path / "new", progress=False)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def changed_corpus(work, moved):
    """Another corpus where the run's was."""
    write_corpus(work / "corpus", operator="*")
    yield
    shutil.rmtree(work / "corpus")


@pytest.fixture
def copy(moved, tmp_path):
    return shutil.copytree(moved["folder"], tmp_path / "run")


def data_of(folder):
    return folder / "data" / dovetail.load(folder).about["data"]


def assert_generates_and_exports(run, moved, tmp_path):
    assert run.generate("def f", max_new_tokens=12).text == moved["text"]
    run.export_hf(tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_a_run_is_used_and_continues_though_its_corpus_has_changed(
    moved, experiment, copy, changed_corpus, tmp_path
):
    run = dovetail.load(copy)
    assert_generates_and_exports(run, moved, tmp_path)
    assert run.evaluate(["held_out"]) == moved["metrics"]
    losses = [
        entry["loss"]
        for entry in experiment.train(steps=5, folder=copy, progress=False).metrics()
        if "loss" in entry
    ]
    assert losses == pytest.approx(moved["losses"], rel=1e-6)


def test_a_run_without_its_data_is_not_evaluated_on_a_changed_corpus(
    moved, experiment, copy, changed_corpus, tmp_path
):
    data = data_of(copy)
    shutil.rmtree(data)  # as if it were too large to be kept
    run = dovetail.load(copy)
    message = (
        rf"the corpus has changed since .* \(its data was {data.name}, now it is .*\), so the "
        r"metrics would be those of other data\. Restore the corpus"
    )
    with pytest.raises(dovetail.Error, match=message):
        run.evaluate(["held_out"])
    assert_generates_and_exports(run, moved, tmp_path)
    with pytest.raises(dovetail.Error, match="was trained on other data"):
        experiment.train(steps=5, folder=copy, progress=False)


def test_data_that_is_in_the_cache_alone_is_found(moved, copy, monkeypatch, tmp_path):
    data = data_of(copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data_folder().mkdir(parents=True)
    data.rename(data_folder() / data.name)
    assert dovetail.load(copy).evaluate(["held_out"]) == moved["metrics"]


def test_damaged_data_stops_evaluation_alone(moved, copy, tmp_path, capsys):
    file = data_of(copy) / "train.tokens"
    file.write_bytes(bytes(file.stat().st_size))
    run = dovetail.load(copy)
    assert_generates_and_exports(run, moved, tmp_path)
    assert main(["generate", str(copy), "--prompt", "def f", "--tokens", "12"]) == 0
    assert capsys.readouterr().out == f"def f{moved['text']}\n"
    with (
        pytest.warns(UserWarning, match=r"train\.tokens does not match its checksum\. Data is"),
        pytest.raises(dovetail.Error, match="corpus"),
    ):
        run.evaluate(["held_out"])


def test_the_folder_says_what_the_run_was_made_with(moved):
    about = dovetail.load(moved["folder"]).about
    assert about["versions"]["jax"] == jax.__version__
    assert about["overrides"][: len(CHANGES)] == list(CHANGES)
    assert set(about["tokenizer"]) == {"tokenizer.json"}
    commits = [
        code.get("dovetail", {}).get("commit")
        for code in (about["code"], code_versions(["dovetail"]))
    ]
    assert commits[0] == commits[1]


def test_loss_and_gradients_by_parameters(moved):
    run = dovetail.load(moved["folder"])
    text = "def f(x): return x"
    loss, gradients = jax.value_and_grad(lambda params: run.loss(text, params))(run.params)
    assert loss == pytest.approx(float(run.loss(run.tokenizer.encode(text))), rel=1e-6)
    assert gradients.keys() == run.params.keys()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    tokens = run.tokenizer.encode(text)
    logits = np.asarray(run.model(tokens[None])[0], np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.mean([log_probs[i, token] for i, token in enumerate(tokens[1:])])
    assert loss == pytest.approx(expected, rel=1e-5)
    assert run.model.embed(token_batch(tokens[None])).shape == (1, len(tokens) - 1, 16)
    with pytest.raises(AttributeError, match="CausalLM has no method 'decoder'"):
        _ = run.model.decoder


def test_a_batch_that_does_not_divide_is_evaluated(moved, monkeypatch):
    """A run that was trained on fewer devices."""
    run = dovetail.load(moved["folder"])
    monkeypatch.setattr(run._built.input, "_batch_size", 6)
    found = run.evaluate(["held_out"])
    assert found["held_out/loss"] == pytest.approx(moved["metrics"]["held_out/loss"], rel=0.1)
    assert run.loaded.placement.mesh.size > 1


def test_a_run_computes_on_the_mesh_of_its_parameters(moved):
    """So that kernels run on the shard of each device; a text is replicated."""
    run = dovetail.load(moved["folder"])
    with run.model._context():
        placement = current_placement()
    assert placement is not None
    assert placement.mesh == run.loaded.placement.mesh
    assert placement.num_shards("batch", "heads") == 1


@pytest.mark.parametrize(
    ("text", "got"),
    [("", "nothing"), ([], "nothing"), ([[1, 2]], r"an array of shape \(1, 2\)")],
)
def test_logits_of_no_text(moved, text, got):
    message = rf"logits: expected a text .* at least one token, got {got}\. For an empty text, pass"
    with pytest.raises(dovetail.Error, match=message):
        dovetail.load(moved["folder"]).logits(text)


@pytest.mark.parametrize("ids", [[1, 2, 300000], [1, -7, 3]])
def test_token_ids_that_the_model_does_not_know(moved, ids):
    run = dovetail.load(moved["folder"])
    for method in (run.logits, run.loss, run.generate):
        with pytest.raises(dovetail.Error, match=r"is not in the model's vocabulary"):
            method(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 8}, r"unknown option 'tokens'\. .*max_new_tokens"),
        ({"max_new_tokens": -4}, r"max_new_tokens: expected 1 or more, got -4"),
        ({"max_new_tokens": 2.5}, r"max_new_tokens: expected 1 or more, got 2\.5"),
        ({"inputs": "abc"}, r"inputs: expected arrays by name, got 'abc'"),
    ],
)
def test_wrong_options_of_generation(moved, options, message):
    with pytest.raises(dovetail.Error, match=message):
        dovetail.load(moved["folder"]).generate("a", **options)


def test_calls_with_what_the_model_does_not_take(moved):
    run = dovetail.load(moved["folder"])
    with pytest.raises(
        dovetail.Error, match=r"CausalLM.predict: cannot be called with float32\[3\]"
    ):
        run.model(np.ones(3, np.float32))
    with pytest.raises(dovetail.Error, match=r"CausalLM.predict: cannot be called with nothing"):
        run.model()
    with pytest.raises(dovetail.Error, match=r"evaluate: expected names of evaluators, got 5"):
        run.evaluate(5)
    del run.trainer.model.vocab_size
    with pytest.raises(dovetail.Error, match=r"logits: the model of .*CausalLM, has no vocabulary"):
        run.logits([1, 2, 3])


def edit(folder, **values):
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def missing_tokenizer(folder):
    (folder / "tokenizer" / "tokenizer.json").unlink()


def damaged_tokenizer(folder):
    file = folder / "tokenizer" / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "is not a run folder: there is no such folder"),
        (lambda folder: (folder / "run.json").unlink(), "is not a run folder: it has no run.json"),
        (lambda folder: (folder / "run.json").write_text("[1]"), "expected an object, got list"),
        (lambda folder: edit(folder, format=2), "was written by a newer Dovetail .*Upgrade it"),
        (lambda folder: edit(folder, imports=["my_gone"]), "trained with --import my_gone; pass"),
        (lambda folder: (folder / "config.txt").unlink(), "has no config.txt. Restore it"),
        (missing_tokenizer, "tokenizer.json is missing, expected .* Restore it"),
        (damaged_tokenizer, "tokenizer.json is damaged: its digest is .* Restore it"),
        (lambda folder: shutil.rmtree(folder / "checkpoints"), "has no checkpoint yet"),
    ],
)
def test_a_spoiled_run_is_one_sentence(moved, tmp_path, capsys, spoil, message):
    folder = shutil.copytree(moved["folder"], tmp_path / "run")
    spoil(folder)
    with pytest.raises(dovetail.Error, match=message):
        dovetail.load(folder).generate("def", max_new_tokens=2)
    assert main(["generate", str(folder), "--tokens", "2"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert shown.count("dovetail: ") == 1


def test_an_unknown_evaluator_names_those_there_are(moved, capsys):
    with pytest.raises(dovetail.Error, match=r"no evaluator 'held'.*'held_out'"):
        dovetail.load(moved["folder"]).evaluate(["held"])
    assert main(["evaluate", str(moved["folder"]), "held"]) == 2
    assert "Did you mean 'held_out'" in capsys.readouterr().err


def test_evaluation_prints_texts_and_a_table(moved, tmp_path, capsys):
    folder = shutil.copytree(moved["folder"], tmp_path / "run")
    assert main(["evaluate", str(folder), "held_out", "samples"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("--- samples/text_1\n")
    assert re.search(r"^held_out/loss +5\.\d+$", shown, re.MULTILINE)
    text = (folder / "config.txt").read_text()
    kept = [line for line in text.splitlines() if not line.startswith("evaluators")]
    (folder / "config.txt").write_text("\n".join(kept) + "\n")
    assert main(["evaluate", str(folder)]) == 2
    assert "this run has no evaluators. Train it with one" in capsys.readouterr().err
    with pytest.raises(dovetail.Error, match="this run has no evaluators"):
        dovetail.load(folder).evaluate()
