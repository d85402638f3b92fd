"""Bad input: one clear message, exit code 2, and nothing half-written."""

import json
import subprocess
import sys

import pytest

from dovetail.cli import main
from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module

TINY = [
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
    "input.sequence_length=16",
    "input.batch_size=8",
    "mesh.fsdp=1",
    "mesh.data=-1",
    "evaluators={}",
]


class AsksForImages(Module):
    """A layer that asks for an input that a language model does not provide."""

    class Config(Module.Config["AsksForImages"]):
        width: int = REQUIRED

    def __call__(self, x_BSE, context):
        return x_BSE + context.get("images")


def complain(capsys, tmp_path, monkeypatch, *argv):
    """Runs a command that must fail, and returns its message."""
    monkeypatch.chdir(tmp_path)
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == [], "something was written"
    lines = captured.err.strip().splitlines()
    assert lines[-1].startswith("dovetail: ") or len(lines) > 1
    return captured.err


CASES = {
    "unknown experiment": (["train", "tiny-ml"], ["no experiment 'tiny-ml'", "'tiny-lm'"]),
    "unknown field": (
        ["train", "tiny-lm", "model.decoder.stack.num_layer=2"],
        ["model.decoder.stack.num_layer", "Stack has no field", "'num_layers'"],
    ),
    "wrong type": (
        ["train", "tiny-lm", "model.decoder.stack.num_layers=two"],
        ["model.decoder.stack.num_layers", "two"],
    ),
    "wrong part": (
        ["train", "tiny-lm", "model.decoder.stack=RMSNorm"],
        ["model.decoder.stack", "expected a config that builds a Layer", "RMSNorm"],
    ),
    "unknown part": (
        ["train", "tiny-lm", "input.corpus=Nope"],
        ["input.corpus", "'Nope'", "Known: ", "StandardLibrary", "TextFiles", "--import"],
    ),
    "unknown part with a near name": (
        ["train", "tiny-lm", "input.tokenizer=BytePairTokeniser"],
        ["input.tokenizer", "Did you mean 'BytePairTokenizer'"],
    ),
    "unknown function": (
        ["train", "tiny-lm", "model.decoder.stack.layer.attention.mask=Causl"],
        ["Did you mean 'dovetail.kernels:Causal'?"],
    ),
    "an input that nobody provides": (
        ["train", "tiny-lm", "model.decoder.stack.layer=AsksForImages", "evaluators={}"],
        ["decoder/stack", "asks for the input 'images', which nobody provides", "context.provide("],
    ),
    "not an override": (["train", "tiny-lm", "width"], ["expected key.path=value"]),
    "heads that do not divide": (
        ["train", "tiny-lm", *TINY, "model.decoder.stack.layer.attention.num_heads=3"],
        ["a width of 16 does not divide into 3 heads"],
    ),
    "batch that does not divide the mesh": (
        ["train", "tiny-lm", *TINY, "input.batch_size=12"],
        ["input.batch_size", "12", "8 shards"],
    ),
    "mesh that does not fit": (
        ["train", "tiny-lm", *TINY, "mesh.data=3"],
        ["mesh", "8 devices"],
    ),
    "unknown modifier": (
        ["train", "tiny-lm", "--with", "moee"],
        ["--with moee", "there is no modifier"],
    ),
    "unknown package": (
        ["train", "tiny-lm", "--import", "no_such_package"],
        ["--import no_such_package"],
    ),
    "bad profile": (["train", "tiny-lm", "--profile", "13:10"], ["--profile", "10:13"]),
    "profile past the end": (
        ["train", "tiny-lm", "--profile", "300:303"],
        ["--profile 300:303", "will take the steps 0:240", "--steps"],
    ),
    "no data": (
        ["data", "prepare", "llama2-7b"],
        ["input.corpus: this experiment has no data of its own", "--data PATH", "docs/data.md"],
    ),
    "a bare leaf name": (
        ["train", "tiny-lm", "num_layers=4"],
        ["num_layers", "Did you mean model.decoder.stack.num_layers=4?"],
    ),
    "another program's name": (
        ["train", "tiny-lm", "lr=0.1"],
        ["lr: Trainer has no field", "Did you mean learner.schedule.peak=0.1?"],
    ),
    "a leaf name in the wrong place": (
        ["train", "tiny-lm", "model.num_layers=4"],
        ["Did you mean model.decoder.stack.num_layers=4?"],
    ),
    "a mistyped leaf name": (["train", "tiny-lm", "batch_siz=4"], ["mean input.batch_size=4?"]),
    "a leaf name with a modifier": (
        ["train", "tiny-lm", "--with", "moe", "num_experts=4"],
        ["Did you mean model.decoder.stack.layer.feed_forward.num_experts=4"],
    ),
    "a huge seed": (
        ["train", "tiny-lm", "--seed", "99999999999999999999"],
        ["--seed: expected -2,147,483,648 to 4,294,967,295"],
    ),
    "a huge seed as a key": (
        ["train", "tiny-lm", "seed=99999999999999999999"],
        ["seed: expected -2,147,483,648 to 4,294,967,295"],
    ),
    "negative steps": (["train", "tiny-lm", "--steps", "-5"], ["--steps: expected 1 to"]),
    "no tokens": (["generate", "run", "--tokens", "-3"], ["--tokens: expected 1 to", "got -3"]),
    "a batch beyond all machines": (
        ["train", "tiny-lm", "input.batch_size=1000000000000000"],
        ["input.batch_size=1000000000000000 times input.sequence_length=", "tokens per step"],
    ),
    "a width beyond all machines": (
        ["train", "tiny-lm", "model.width=100000000000000"],
        ["The parameter decoder/embedding/weight", "Which size was mistyped?"],
    ),
    "a negative learning rate": (
        ["train", "tiny-lm", "learner.schedule.peak=-1"],
        ["learner.schedule.peak: expected 0 or more", "the highest learning rate", "Got -1"],
    ),
    "a learning rate that is not a number": (
        ["train", "tiny-lm", "learner.schedule.peak=nan"],
        ["learner.schedule.peak: expected 0 or more, and finite"],
    ),
    "an infinite learning rate, in a dry run": (
        ["train", "tiny-lm", "learner.schedule.peak=inf", "--dry-run"],
        ["learner.schedule.peak: expected 0 or more, and finite"],
    ),
    "two lengths of the warmup": (
        ["train", "tiny-lm", "learner.schedule.warmup_steps=1"],
        ["learner.schedule.warmup_steps: got 1, but warmup_fraction=0.05 sets the warmup"],
    ),
    "no rows": (
        ["train", "tiny-lm", "input.batch_size=0"],
        ["input.batch_size: expected 1 or more, got 0"],
    ),
    "a negative save interval": (
        ["train", "tiny-lm", "checkpointer.every=-2"],
        ["dovetail: checkpointer.every: expected 1 or more, got -2.\n"],
    ),
    "a decay of more than 1": (
        ["train", "tiny-lm", "--with", "ema", "learner.ema.decay=2"],
        ["learner.ema.decay: expected 0 or more and less than 1, got 2"],
    ),
    "a vocabulary without all bytes": (
        ["train", "tiny-lm", "input.tokenizer.vocab_size=3"],
        ["input.tokenizer.vocab_size: expected at least"],
    ),
    "a corpus that is not there, in a dry run": (
        [
            *["train", "tiny-lm", *TINY, "--dry-run"],
            *["input.corpus=TextFiles", "input.corpus.files=nothing"],
        ],
        ["there is no file or folder 'nothing'"],
    ),
    "a limit of no phase": (
        ["train", "tiny-lm", "--supervise", "--limit", "lunch=5"],
        ["--limit lunch=5: expected a phase of start, compile"],
    ),
    "a limit that is no number": (
        ["train", "tiny-lm", "--supervise", "--limit", "save=soon"],
        ["--limit save=soon: expected 1 or more seconds, got 'soon'"],
    ),
    "a limit of no time": (
        ["train", "tiny-lm", "--supervise", "--limit", "save=0"],
        ["dovetail: --limit save=0: expected 1 or more seconds, got 0.\n"],
    ),
    "a limit without a number": (
        ["train", "tiny-lm", "--supervise", "--limit", "save"],
        ["--limit save: expected PHASE=S, such as start=1200"],
    ),
    "a hang at once": (
        ["train", "tiny-lm", "--supervise", "--hang-seconds", "0"],
        ["dovetail: --hang-seconds: expected 1 or more, got 0.\n"],
    ),
    "fewer than no restarts": (
        ["train", "tiny-lm", "--supervise", "--restarts", "-1"],
        ["dovetail: --restarts: expected 0 or more, got -1.\n"],
    ),
    "several workers without a supervisor": (
        ["train", "tiny-lm", "--processes", "2"],
        ["--processes: it needs --supervise"],
    ),
    "missing run": (["generate", "runs/nothing"], ["is not a run folder"]),
    "no targets": (
        ["plan", "tiny-lm", "--targets", " ,"],
        ["--targets ' ,' names no machine. Pass `all`, or names"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_gives_one_clear_message_and_code_2(case, capsys, tmp_path, monkeypatch):
    argv, pieces = CASES[case]
    message = complain(capsys, tmp_path, monkeypatch, *argv)
    for piece in pieces:
        assert piece in message


@pytest.mark.parametrize(
    ("argv", "pieces"),
    [
        (["trian"], ["there is no verb 'trian'. Did you mean 'train'?"]),
        (["config", "shw"], ["there is no action 'shw'. Did you mean 'show'?"]),
        (["train"], ["name an EXPERIMENT", "`dovetail config list`"]),
        (
            ["train", "tiny-lm", "--lr", "0.1"],
            ["there is no option --lr", "learner.schedule.peak=0.1?"],
        ),
        (["train", "tiny-lm", "--dataset", "notes"], ["Did you mean --data notes?"]),
        (["train", "tiny-lm", "--batch-size=16"], ["Did you mean input.batch_size=16?"]),
        (["train", "tiny-lm", "--dryrun"], ["Did you mean --dry-run"]),
        (["doctor", "now"], ["unexpected argument 'now'"]),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(argv, pieces, capsys):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    for piece in pieces:
        assert piece in line


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--tokens", ""),
        ("--wiht", "Did you mean --with? "),
        ("--stpes", "Did you mean --steps or --spares? "),
        ("--dryrun", "Did you mean --dry-run? "),
    ],
)
def test_a_mistyped_option_gets_good_candidates_only(option, advice, capsys):
    with pytest.raises(SystemExit):
        main(["train", "tiny-lm", option, "-3"])
    message = capsys.readouterr().err
    assert f"there is no option {option}. {advice}`dovetail train --help` explains." in message


def test_an_import_that_fails_names_file_and_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "bad_syntax_here.py").write_text("x = 1\ny = (\n")
    assert main(["config", "list", "--import", "bad_syntax_here"]) == 2
    assert "bad_syntax_here.py:2: SyntaxError: '(' was never closed" in capsys.readouterr().err
    (tmp_path / "fails_here.py").write_text("\n\nprint(1 // 0)\n")
    (tmp_path / "exits_here.py").write_text("raise SystemExit(3)")
    assert main(["config", "list", "--import", "exits_here"]) == 2
    assert "exits_here.py:1: SystemExit" in capsys.readouterr().err
    assert main(["config", "list", "--import", "fails_here"]) == 2
    assert "fails_here.py:3: ZeroDivisionError" in capsys.readouterr().err


def test_a_dry_run_checks_the_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    argv = ["train", "tiny-lm", *TINY, "--dry-run", "--run"]
    assert main([*argv, "file/run"]) == 2
    assert "--run file/run: " in capsys.readouterr().err
    if sys.platform == "linux":  # nobody can create a folder there, whatever its permissions say
        assert main([*argv, "/proc/x"]) == 2
        assert "--run /proc/x: nothing can be created in /proc" in capsys.readouterr().err
    from dovetail.config import identity, to_text
    from dovetail.experiments import find_experiment

    (tmp_path / "run").mkdir()
    text = to_text(identity(find_experiment("small-lm").config()))
    (tmp_path / "run" / "identity.txt").write_text(text)
    assert main([*argv, "run"]) == 2
    assert "another identity" in capsys.readouterr().err


MEANT = {"lr=0.1": "learner.schedule.peak=0.1", "batch_size=8": "input.batch_size=8"}


def test_a_mistyped_key_is_refused_without_jax(cache_folder):
    """The first use of an experiment caches its keys, also for when the package has changed."""
    code = (
        "import sys; from dovetail.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print(code, 'jax' in sys.modules)"
    )

    def run(*argv, message="Trainer has no field 'modle'. Did you mean 'model'?"):
        command = [sys.executable, "-c", code, *argv]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert message in done.stderr
        return done.stdout.split()

    mistyped = ["tiny-lm", "modle.width=3"]
    assert run("train", *mistyped) == ["2", "True"]
    assert run("train", *mistyped) == ["2", "False"]
    assert run("train", *mistyped, "--with", "moe") == ["2", "False"]
    for verb in (["train"], ["plan"], ["config", "sharding"]):
        assert run(*verb, *mistyped, "--target", "tpu-v5p-8") == ["2", "False"]
    assert run("plan", *mistyped, "--targets", "all") == ["2", "False"]
    for change in (["--with", "moe"], ["--with", "lora"], ["--target", "tpu-v5e-8"]):
        for key, meant in MEANT.items():
            message = f"Did you mean {meant}?"
            assert run("train", "tiny-lm", *change, key, message=message) == ["2", "False"]
    cached = cache_folder / "dovetail" / "keys" / "tiny-lm.json"
    stale = json.loads(cached.read_text()) | {"fingerprint": []}
    cached.write_text(json.dumps(stale))
    assert run("train", *mistyped) == ["2", "False"], "the package has changed"
    cached.write_text('{"fingerprint": []}')
    assert run("train", *mistyped) == ["2", "True"], "the cache is damaged"


def test_cached_keys_never_refuse_a_key_of_a_new_component():
    from dovetail.experiments import ConfigKeys, find_experiment

    keys = ConfigKeys.of(find_experiment("tiny-lm").config())
    keys.check(["input.corpus=TextFiles", "input.corpus.files=x", "evaluators.mine.every=3"])
    with pytest.raises(ConfigError, match="StandardLibrary has no field 'files'"):
        keys.check(["input.corpus.files=x"])


def test_cached_keys_never_refuse_a_key_that_a_modifier_may_add():
    from dovetail.experiments import ConfigKeys, find_experiment

    keys = ConfigKeys.of(find_experiment("tiny-lm").config())
    keys.check(["model.decoder.stack.layer.feed_forward.num_experts=4"], is_final=False)
    keys.check(["num_expert=4"], is_final=False)  # the advice will name a key of the modifier
    with pytest.raises(ConfigError, match=r"no field 'num_layer'\. Did you mean 'num_layers'"):
        keys.check(["model.decoder.stack.num_layer=4"], is_final=False)
    with pytest.raises(ConfigError, match="Trainer has no field 'zzz'"):
        keys.check(["zzz=4"], is_final=False)


def test_a_stale_list_never_refuses_a_key_that_the_package_declares():
    from dovetail.experiments import ConfigKeys, find_experiment

    configs = ConfigKeys.of(find_experiment("tiny-lm").config()).configs
    owner, fields = configs[""]
    older = {name: words for name, words in fields.items() if name != "seed"}
    keys = ConfigKeys({**configs, "": (owner, older)}, is_current=False)
    keys.check(["seed=3"])  # a field since, and before only the name of others
    with pytest.raises(ConfigError, match=r"Did you mean learner\.schedule\.peak=1\?"):
        keys.check(["lr=1"])


@pytest.mark.parametrize("kind", ["missing", "empty", "unreadable"])
def test_a_corpus_that_cannot_be_used(kind, capsys, tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    if kind != "missing":
        corpus.mkdir()
    if kind == "unreadable":
        (corpus / "a.txt").write_bytes(b"\xff\xfe\x00bad")
    work = tmp_path / "work"
    work.mkdir()
    message = complain(
        capsys,
        work,
        monkeypatch,
        *["train", "tiny-lm", *TINY],
        "input.corpus=TextFiles",
        f"input.corpus.files={corpus}",
    )
    assert str(corpus) in message


@pytest.mark.parametrize("folder", ["runs/tiny-lm", "runs/tiny-lm-0badcafe/"])
def test_a_run_folder_without_a_config_cannot_be_continued(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "run.json").write_text('{"experiment": "tiny-lm"}')
    for argv in (["train", folder], ["config", "show", folder]):
        assert main(argv) == 2
        message = capsys.readouterr().err
        assert "is not a complete run folder: it has no config.txt. Restore it" in message


def test_a_run_folder_of_no_known_experiment_for_an_experiment(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported" / "run.json").write_text("{}")
    assert main(["train", "imported"]) == 2
    message = capsys.readouterr().err
    assert "is an imported model, not an experiment" in message
    assert "`dovetail generate imported`" in message
    assert "--with from-run:path=imported`" in message


def test_a_run_folder_of_another_identity_is_refused_with_a_diff(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["train", "tiny-lm", *TINY, "--steps", "2", "--run", "run"]
    assert main(argv) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    capsys.readouterr()
    assert main([*argv, "--seed", "7"]) == 2
    message = capsys.readouterr().err
    assert "another identity" in message
    assert "seed: 0 -> 7" in message
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before
    assert main([*argv, "checkpointer.every=1"]) == 0, "a save policy may change"


@pytest.mark.parametrize(
    ("argv", "flag", "words"),
    [
        (
            ["config", "sharding", "tiny-lm", "--target", "cpu-8"],
            "--html away/page.html",
            "no folder away",
        ),
        (["config", "sharding", "tiny-lm", "--target", "cpu-8"], "--html here", "that is a folder"),
        (["modularity"], "--write file/figures", "is a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    argv, flag, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    assert main([*argv, *flag.split()]) == 2
    shown, message = capsys.readouterr()
    assert shown == ""
    assert message.startswith(f"dovetail: {flag}: ")
    assert words in message
