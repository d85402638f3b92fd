"""Published sizes of a package outside of Dovetail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.experiments import experiments, find_experiment, register_sizes
from dovetail.experiments.registry import _experiments
from dovetail.module import parameter_specs

SIZES = """
[my-1b]
about = "a Llama of my own"
parameters = 75_456
recipe = { sequence_length = 64, batch_size = 16, steps = 100, peak = 1e-3, warmup_steps = 10 }

[my-1b.values]
vocab_size = 300
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
rms_norm_eps = 1e-5
rope_theta = 10000.0
max_position_embeddings = 128

[my-2b]
like = "my-1b"
about = "twice as deep"
parameters = 112_448
values = { num_hidden_layers = 2 }
"""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    assert "tiny-lm" in experiments(), "the first use loads the package's own"
    with _experiments.restored():
        yield


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(text: str = SIZES, name: str = "llama.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make


@pytest.mark.parametrize("as_folder", [True, False])
def test_sizes_are_experiments(write: Callable[..., Path], as_folder: bool) -> None:
    file = write()
    found = register_sizes(file.parent if as_folder else str(file))
    assert list(found) == ["my-1b", "my-2b"]
    entry = find_experiment("my-2b")
    assert (entry.family, entry.about, entry.source) == ("llama", "twice as deep", str(file))
    config = entry.config()
    assert (config.steps, config.input.batch_size, config.model.dtype) == (100, 16, "bfloat16")
    assert config.model.decoder.stack.num_layers == 2
    assert entry.tiny().steps == 4
    sizes = [parameter_specs(find_experiment(name).config().build().model) for name in found]
    counts = [sum(spec.size for spec in specs.values()) for specs in sizes]
    assert counts == [size.parameters for size in found.values()]


def test_a_package_ships_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "my_sizes"
    (folder / "sizes").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from pathlib import Path\n\nfrom dovetail.experiments import register_sizes\n\n"
        'register_sizes(Path(__file__).parent / "sizes")\n'
    )
    (folder / "sizes" / "llama.toml").write_text(SIZES)
    assert main(["config", "show", "my-1b", "--import", "my_sizes"]) == 0
    assert "model.decoder.stack.num_layers = 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[my-1b", "cannot be read"),
        ('[my-1b]\nabout = "x"', r"\[my-1b\]: 'recipe' is missing. A size has about, parameters"),
        ('[my-1b]\nlike = "other"', "'other' is missing"),
        (SIZES.replace("warmup_steps", "warmup"), "unexpected keyword argument 'warmup'"),
        (SIZES.replace("my-1b", "llama2-7b"), "'llama2-7b' is defined in .*again in"),
    ],
)
def test_a_mistake_names_the_file(write: Callable[..., Path], text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        register_sizes(write(text))
    assert "llama.toml" in str(raised.value)


def test_a_folder_without_sizes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        register_sizes(tmp_path)


def test_an_unknown_family_is_named(write: Callable[..., Path]) -> None:
    register_sizes(write(name="lama.toml"))
    with pytest.raises(ConfigError, match=r"no model family 'lama'.*llama"):
        find_experiment("my-1b").config()
