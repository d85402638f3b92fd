"""Lists, parts of a config, tab completion, tables and pages: what a person reads or presses."""

import json
import os
import subprocess
import sys
import threading

import jax
import pytest

from dovetail.cli import main
from dovetail.cli.output import check_number, print_json
from dovetail.config import ConfigError
from dovetail.runtime import count_cache_hits
from dovetail.trainer.program import compile_step
from tests.cli.test_bad_input import TINY


def output(capsys, *argv):
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def test_experiments_are_listed_by_family_and_modifiers_by_kind(capsys):
    lines = output(capsys, "config", "list").splitlines()
    assert lines.index("gemma2") < lines.index("laptop") < lines.index("llama")
    llama = lines[lines.index("llama") + 1 : lines.index("mistral")]
    assert all(line.startswith("  llama") for line in llama)
    modifiers = lines[lines.index("modifiers, for --with:") + 1 :]
    kinds = [line for line in modifiers[: modifiers.index("")] if not line.startswith(" ")]
    assert {"attention", "feed-forward", "fine-tuning", "norms and residuals"} <= set(kinds)
    assert not [kind for kind in kinds if "." in kind], "a module is no kind"
    assert len(kinds) == len(set(kinds))
    start = modifiers.index("fine-tuning") + 1
    names = [line.split()[0].partition(":")[0] for line in modifiers[start : start + 6]]
    assert {"from-run", "lora"} <= set(names)


def test_a_word_filters_the_list(capsys):
    shown = output(capsys, "config", "list", "qwen3")
    assert "qwen3-8b-lora" in shown, "variants of what is asked for are listed"
    assert "llama" not in shown
    listed = json.loads(output(capsys, "config", "list", "moe", "--json"))
    assert "moe" in listed["modifiers"]
    assert all("qwen" in name or "moe" in name for name in listed["experiments"])
    assert main(["config", "list", "wombat"]) == 2
    assert "nothing contains 'wombat'" in capsys.readouterr().err
    assert main(["config", "list", "zzz"]) == 2
    message = capsys.readouterr().err
    assert message.endswith(", ...\n")
    assert "...." not in message


def test_a_subtree_of_the_config_is_shown(capsys):
    shown = output(capsys, "config", "show", "tiny-lm", "learner.schedule", "--steps", "9")
    lines = shown.splitlines()
    assert "learner.schedule.peak = 0.01" in lines
    assert all(line.startswith("learner.schedule") for line in lines)
    values = json.loads(output(capsys, "config", "show", "tiny-lm", "mesh", "--json"))
    assert set(values) >= {"mesh", "mesh.fsdp"}
    assert "model.width" not in values
    assert main(["config", "show", "tiny-lm", "learner.shedule"]) == 2
    assert "'schedule'" in capsys.readouterr().err


def test_values_that_parents_set_are_derived(capsys):
    shown = output(capsys, "config", "show", "tiny-lm")
    assert "model.vocab_size = (derived)" in shown
    assert "REQUIRED" not in shown
    missing = output(capsys, "config", "show", "tiny-lm", "model=CausalLM", "model.width")
    assert missing == "model.width = REQUIRED\n", "this one is really missing"


def complete(line, tmp_path):
    """Returns what argcomplete offers at the end of a line."""
    found = tmp_path / "completions"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><=;|&(:",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    subprocess.run(
        [sys.executable, "-m", "dovetail"], env=environment, check=False, capture_output=True
    )
    return [word.strip() for word in found.read_text().split("\n")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dovetail train tiny-lm learner.schedule.p", ["learner.schedule.peak="]),
        ("dovetail train tiny-lm --steps 5 learner.schedule.p", ["learner.schedule.peak="]),
        ("dovetail train tiny-lm seed=3 --dry-run kernels.s", ["kernels.strict="]),
        ("dovetail train tiny-lm --steps 5 kernels.strict=", ["true", "false"]),
        ("dovetail train tiny-lm kernels.strict=", ["true", "false"]),
        ("dovetail train tiny-lm input.split=", ["train", "held_out"]),
        (
            "dovetail train tiny-lm input.corpus=",
            ["Files", "TextFiles", "StandardLibrary", "UnsetCorpus", "ChatFiles"],
        ),
    ],
)
def test_tab_completes_keys_and_values(line, words, tmp_path):
    found = complete(line, tmp_path)
    # A corpus of tests/data, which is known once its module is imported in this process.
    assert [word for word in found if word != "NumberedTexts"] == words


def test_json_has_no_nan_and_no_infinity(capsys):
    print_json({"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": -float("inf")}})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.0], "c": {"d": None}}


def test_an_option_out_of_range_is_named():
    check_number("--top-k", None, 1)
    with pytest.raises(ConfigError, match="--top-k: expected 1 or more, got 0"):
        check_number("--top-k", 0, 1)


def test_a_dry_run_says_what_it_is_doing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("dovetail.utils.progress._DELAY_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny-lm", *TINY, "--dry-run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "tiny-lm: loading" in lines
    assert "tiny-lm: loading or compiling the step" in lines


class Lowered:
    """A lowered step that is in the compilation cache, or is not."""

    def __init__(self, is_cached):
        self.is_cached = is_cached

    def compile(self):
        if self.is_cached:
            jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        return "compiled"


def test_a_step_from_the_cache_is_not_announced_as_compiling():
    lines = []
    assert compile_step(Lowered(is_cached=True), lines.append) == "compiled"
    compile_step(Lowered(is_cached=False), lines.append)
    assert lines[0].startswith("loaded the step from the cache in ")
    assert lines[1].startswith("compiled the step in ")


def test_a_slow_load_from_the_cache_is_not_announced_as_compiling(monkeypatch):
    monkeypatch.setattr("dovetail.trainer.program._NOTICE_SECONDS", 0.0)
    lines, is_noticed = [], threading.Event()

    def log(line):
        lines.append(line)
        is_noticed.set()

    class SlowToLoad(Lowered):
        def compile(self):
            assert is_noticed.wait(30)
            return super().compile()

    compile_step(SlowToLoad(is_cached=True), log)
    notice, done = lines
    assert notice == "loading or compiling the step"
    assert done.startswith("loaded the step from the cache in ")


def test_what_another_thread_loads_is_not_counted():
    with count_cache_hits() as hits:
        other = threading.Thread(target=Lowered(is_cached=True).compile)
        other.start()
        other.join()
        assert hits() == 0
        Lowered(is_cached=True).compile()
        assert hits() == 1
