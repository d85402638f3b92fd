"""A scan finds every kind of place, with its line, and nothing beside them."""

import pytest

from dovetail.config import ConfigError
from dovetail.modularity.scan import KINDS, as_text, feature_words, scan
from tests.modularity.code_base import write_files

ROPE = [feature_words("rope")]
EVERY_KIND = '''
"""A rope and a rotary in prose are not code."""

import dataclasses
from positions import RotaryEmbedding  # rope


@dataclasses.dataclass
class Model:
    width: int
    rope_theta: float = 1e4


class ModelConfig:
    def __init__(self, width, rope_base=1e4):
        self.width = width


class Attention:
    def __init__(self, width, *, use_rope=True):
        self.rotary = RotaryEmbedding(width) if use_rope else None

    def forward(self, x, rope_positions):
        if self.rotary is not None:
            x = self.rotary(x, rope_positions)
        match x.kind:
            case "rope":
                return x
        return [y for y in x if y.scope and y.property]


def apply_rope(x):
    return Attention(8, use_rope=False), {"rope_theta": 1, "europe": 2, "a sentence of rope": 3}


def options(parser):
    parser.add_argument("--rope-theta", type=float)
    return RotaryEmbedding.default()
'''


def feature_of(root, **options):
    return scan(root, ROPE, **options).features[0]


def places(feature, kind):
    return [(hit.line, hit.name) for hit in feature.of_kind(kind)]


def test_every_kind_of_place_is_found_with_its_line(tmp_path):
    feature = feature_of(write_files(tmp_path, {"a.py": EVERY_KIND}))
    expected = {
        "definitions": [(31, "apply_rope")],
        "constructor_parameters": [(10, "rope_theta"), (19, "use_rope")],
        "parameters": [(22, "rope_positions")],
        "config_keys": [(14, "rope_base"), (32, "rope_theta"), (36, "rope-theta")],
        "conditionals": [(20, "use_rope"), (23, "rotary"), (26, "rope")],
        "constructions": [(20, "RotaryEmbedding"), (37, "RotaryEmbedding")],
        "calls": [(24, "rotary")],
        "arguments": [(32, "use_rope")],
        "imports": [(4, "RotaryEmbedding")],
    }
    assert {kind: places(feature, kind) for kind in KINDS} == expected
    assert feature.lines == {"a.py": 13}


def test_keys_of_config_files_are_found(tmp_path):
    root = write_files(
        tmp_path,
        {
            "a.py": "",
            "base.yml": "width: 1\nmodel:\n  rope_theta: 1  # rope: no\n- rope: 2\n# rope: 3\n",
            "base.toml": "[rope]\nrope_theta = 1\n'scope' = 2\n",
            "base.gin": "Attention.use_rope = True\n",
        },
    )
    hits = feature_of(root).of_kind("config_keys")
    assert [f"{hit.file}:{hit.line}" for hit in hits] == [
        "base.gin:1",
        "base.toml:1",
        "base.toml:2",
        "base.yml:3",
        "base.yml:4",
    ]


def test_files_that_know_the_feature_besides_its_own(tmp_path):
    user = "from rope import Rope\nclass {0}:\n    def __init__(self, rope): ...\n"
    root = write_files(
        tmp_path,
        {
            "rope.py": "class Rope: ...\ndef apply_rope(x): ...\n",
            "models/llama.py": user.format("Llama"),
            "models/qwen.py": user.format("Qwen"),
            "models/gpt.py": "class Gpt: ...\n",
            "again.py": "from rope import Rope\n",
        },
    )
    report = scan(root, ROPE)
    summary = report.features[0].summary()
    assert report.features[0].home == "rope.py"
    assert summary["files"] == 4
    assert summary["other_files"] == 3
    assert summary["wired_into_files"] == 2, "importing alone switches nothing on"
    assert summary["wired_into_model_files"] == 2
    assert report.num_model_files == 3


def test_the_home_is_whose_classes_are_imported(tmp_path):
    root = write_files(
        tmp_path,
        {
            "embeddings.py": "class Rotary: ...\n",
            "rope_helper.py": "class RopeTable: ...\ndef rope(): ...\ndef rope_too(): ...\n",
            "a.py": "from embeddings import Rotary\nfrom rope_helper import rope, rope_too\n",
        },
    )
    feature = feature_of(root)
    assert feature.home == "embeddings.py"
    assert feature.own_files == {"embeddings.py", "rope_helper.py"}


def test_a_folder_of_the_feature_is_its_own_and_a_model_called_for_it_is_not(tmp_path):
    root = write_files(
        tmp_path,
        {
            "moe/router.py": "def route(expert):\n    return expert if expert else None\n",
            "moe/layer.py": "class MoE: ...\n",
            "models/qwen_moe.py": "from moe.layer import MoE\nx = MoE() if num_experts else None\n",
        },
    )
    feature = scan(root, [feature_words("moe")]).features[0]
    assert feature.home == "moe/layer.py"
    assert feature.own_files == {"moe/layer.py", "moe/router.py"}
    summary = feature.summary()
    assert summary["other_files"] == 1
    assert (summary["conditionals"], summary["conditionals_elsewhere"]) == (2, 1)
    assert summary["wired_into_model_files"] == 1


def test_a_call_on_a_class_builds_only_by_a_name_for_that(tmp_path):
    text = "Rope()\nRope.Config()\nnn.Rope.from_config(1)\nRope.table()\nRope.apply_rope()\n"
    text += "self.Rope_0(x)\n"
    feature = feature_of(write_files(tmp_path, {"a.py": text}))
    assert places(feature, "constructions") == [(1, "Rope"), (2, "Rope"), (3, "Rope")]
    assert places(feature, "calls") == [(5, "apply_rope"), (6, "Rope_0")]


def test_tests_are_left_out_unless_asked_for(tmp_path):
    names = ["a.py", "a_test.py", "test_a.py", "tests/b.py", "conftest.py", ".venv/c.py"]
    root = write_files(tmp_path, dict.fromkeys(names, "rope = 1\n"))
    assert set(feature_of(root).lines) == {"a.py"}
    assert set(feature_of(root, tests=True).lines) == set(names) - {".venv/c.py"}


def test_a_file_that_does_not_parse_is_named_and_the_rest_is_read(tmp_path):
    files = {"bad.py": "def rope(:\n", "null.py": "x = 1\0\n", "good.py": "rope = 1\n"}
    report = scan(write_files(tmp_path, files), ROPE)
    assert set(report.unparsable) == {"bad.py", "null.py"}
    assert report.num_files == 3
    assert set(report.features[0].lines) == {"good.py"}
    text = as_text(report, {})
    assert "unparsable" in text
    assert "bad.py: SyntaxError" in text


def test_bytes_that_are_no_text_are_no_obstacle(tmp_path):
    (tmp_path / "latin.py").write_bytes(b"rope = '\xe9'\n")
    (tmp_path / "marked.py").write_bytes(b"\xef\xbb\xbfrope = 1\n")
    assert set(feature_of(tmp_path).lines) == {"latin.py", "marked.py"}


def test_one_file_can_be_scanned(tmp_path):
    root = write_files(tmp_path, {"a.py": "rope = 1\n", "b.py": "rope = 1\n"})
    assert set(feature_of(root / "a.py").lines) == {"a.py"}


def test_a_path_that_is_missing_or_without_python_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere does not exist; give the folder"):
        scan(tmp_path / "nowhere", ROPE)
    with pytest.raises(ConfigError, match="holds no Python file"):
        scan(write_files(tmp_path, {"a.txt": "rope"}), ROPE)
    with pytest.raises(ConfigError, match=r"holds only tests \(--tests counts them\)"):
        scan(write_files(tmp_path, {"test_a.py": ""}), ROPE)


def test_a_feature_that_is_nowhere_is_said_so(tmp_path):
    report = scan(write_files(tmp_path, {"a.py": "x = 1\n"}), ROPE)
    assert "not named anywhere" in as_text(report, {})
    assert report.features[0].summary()["files"] == 0
