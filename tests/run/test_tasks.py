"""Tasks: named evaluators with questions of their own, run on any text model."""

import json
import math

import jax
import numpy as np
import pytest

import dovetail
from dovetail.cli.main import main
from dovetail.config import Component, ConfigError
from dovetail.data import ByteTokenizer
from dovetail.trainer import Trainer
from dovetail.trainer.tasks import ExactMatch, Question, task, tasks
from dovetail.trainer.tasks import registry as task_registry
from dovetail.trainer.tasks.arithmetic import Arithmetic
from tests.outside.test_encoder_decoder import Reversals
from tests.outside.test_encoder_decoder import model as encoder_decoder

CHANGES = (
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
    "input.sequence_length=16",
    "input.batch_size=8",
    "evaluators={}",
)


class Copies(Component):
    """The questions that a test gives."""

    class Config(Component.Config["Copies"]):
        """Texts and answers."""

        pairs: tuple[tuple[str, str], ...] = ()

    def __init__(self, config):
        super().__init__(config)
        self.pairs = config.pairs

    def questions(self):
        """Returns them."""
        return [Question(*pair) for pair in self.pairs]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    experiment = dovetail.experiment("tiny-lm").override("input.tokenizer=ByteTokenizer", *CHANGES)
    return experiment.train(steps=2, folder=tmp_path_factory.mktemp("work") / "run", progress=False)


@pytest.fixture
def copies():
    """Registers a task of given questions for the test."""

    def register(*pairs, shots=0):
        config = ExactMatch.Config(questions=Copies.Config(pairs=pairs), shots=shots)
        return task("copies")(lambda: config)

    with task_registry._tasks.restored():
        yield register


def greedy_line(run, prompt):
    text = run.generate(prompt, max_new_tokens=16, temperature=0, stop=["\n"]).text
    return text.strip()


def test_exact_match_counts_the_answers_that_greedy_decoding_gives(trained, copies):
    texts = ["def", "import os", "return x +"]
    answers = [greedy_line(trained, text) for text in texts]
    copies(*zip(texts, answers, strict=True))
    assert trained.evaluate(["copies"])["copies/exact_match"] == 1
    copies(*zip(texts, [answers[0] + "?", *answers[1:]], strict=True))
    found = trained.evaluate("copies")
    assert found["copies/exact_match"] == pytest.approx(2 / 3)
    assert found["copies/questions"] == 3


def test_the_answer_loss_is_that_of_the_answers_tokens_alone(trained, copies):
    solved, asked = ("2 + 2 =", "4"), [("3 + 4 =", "7"), ("10 + 11 =", "21")]
    copies(solved, *asked, shots=1)
    total, tokens = 0.0, 0
    for text, answer in asked:
        prompt = trained.tokenizer.encode(f"2 + 2 = 4\n{text}")
        expected = trained.tokenizer.encode(f" {answer}\n")
        logits = trained.logits(np.concatenate([prompt, expected]))
        log_probs = jax.nn.log_softmax(logits[len(prompt) - 1 : -1])
        total -= float(log_probs[np.arange(len(expected)), expected].sum())
        tokens += len(expected)
    assert trained.evaluate("copies")["copies/answer_loss"] == pytest.approx(total / tokens, 1e-5)


def test_arithmetic_runs_without_the_corpus_from_python_and_the_command_line(
    trained, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no prepared data either
    opened = dovetail.load(trained.path)
    monkeypatch.setattr(type(opened._built.input), "prepare", None)
    found = opened.evaluate(tasks=["arithmetic"])
    assert found["arithmetic/questions"] == 64
    assert 0 <= found["arithmetic/exact_match"] <= 1
    assert found["arithmetic/answer_loss"] == pytest.approx(math.log(257), abs=1)
    assert main(["evaluate", str(trained.path), "arithmetic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(found)


def test_a_task_of_an_outside_module_is_found_by_name(trained, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_tasks.py").write_text(
        "from dovetail.trainer.tasks import ExactMatch, task\n"
        "from dovetail.trainer.tasks.arithmetic import Arithmetic\n"
        "@task('tiny-sums')\n"
        "def tiny_sums():\n"
        "    questions = Arithmetic.Config(num_questions=3, largest=5)\n"
        "    return ExactMatch.Config(questions=questions, shots=0)\n"
    )
    monkeypatch.chdir(tmp_path)
    with task_registry._tasks.restored():
        arguments = ["evaluate", str(trained.path), "tiny-sums", "--import", "my_tasks"]
        assert main(arguments) == 0
    assert "tiny-sums/exact_match" in capsys.readouterr().out


def test_a_task_is_an_evaluator_of_an_experiment_too(tmp_path):
    experiment = dovetail.experiment("tiny-lm").override(
        "input.tokenizer=ByteTokenizer",
        *CHANGES[:-1],
        "evaluators={}",
        "evaluators.sums=ExactMatch",
        "evaluators.sums.questions=Arithmetic",
        "evaluators.sums.questions.num_questions=8",
    )
    run = experiment.train(steps=1, folder=tmp_path / "run", progress=False)
    assert any("sums/exact_match" in entry for entry in run.metrics())


class TextWithSource(Reversals):
    """The input of an encoder-decoder, with a tokenizer."""

    def load_tokenizer(self, folder):
        return ByteTokenizer.Config().build()

    tokenizer = property(lambda self: self.load_tokenizer(None))


def test_a_model_that_needs_more_than_text_is_refused_before_training(tmp_path):
    sums = ExactMatch.Config(questions=Arithmetic.Config())
    config = Trainer.Config(model=encoder_decoder().config, input=TextWithSource.Config(), steps=1)
    config.set(evaluators={"sums": sums})
    message = (
        r"ExactMatch gives the model nothing but text, and this one needs more or other inputs "
        r"\(decoder/.*asks for the input 'encoder', which nobody provides\)\. Remove the evaluator"
    )
    with pytest.raises(ConfigError, match=message):
        config.build().check(tmp_path)


def test_arithmetic_is_right_and_each_question_is_asked_once():
    found = Arithmetic.Config(num_questions=500).build().questions()
    assert len({question.text for question in found}) == 500
    for question in found:
        assert eval(question.text.removesuffix("=")) == int(question.answer) >= 0
    again = Arithmetic.Config(num_questions=500).build().questions()
    assert again == found


def test_impossible_questions_are_refused():
    with pytest.raises(ConfigError, match="num_questions: expected 1 to 4"):
        Arithmetic.Config(num_questions=5, largest=1).build()
    config = tasks()["arithmetic"]()
    with pytest.raises(ConfigError, match=r"shots: expected 0 to 67.*got 68"):
        config.set(shots=68).build()
