"""The largest config and constructor are counted with what they inherit."""

from dovetail.modularity.scan import feature_words, scan
from tests.modularity.code_base import write_files

ROPE = [feature_words("rope")]


def sizes(tmp_path, files):
    report = scan(write_files(tmp_path, files), ROPE)
    return report.largest_config, report.largest_constructor


def test_fields_of_configs_are_counted_with_inherited_ones(tmp_path):
    files = {
        "base.py": """
            from pydantic import BaseModel
            from typing import ClassVar
            class Optimizer(BaseModel):
                rate: float = 0.1
                name: str = ""
                kinds: ClassVar[int] = 3
            class Data(BaseModel):
                name: str = ""
                batch: int = 1
            class Groups(Optimizer, Data): ...
        """,
        "all.py": """
            import base
            class Config(base.Groups):
                steps: int = 1
        """,
    }
    config, constructor = sizes(tmp_path, files)
    assert (config.name, config.file, config.line, config.count) == ("Config", "all.py", 2, 4)
    assert constructor is None, "a base of a config is a config"


def test_nested_configs_inherit_by_their_outer_name(tmp_path):
    files = {
        "a.py": """
            class Module:
                class Config:
                    name: str = ""
            class Linear(Module):
                class Config(Module.Config["Linear"]):
                    width: int = 1
                    bias: bool = True
        """
    }
    config, _ = sizes(tmp_path, files)
    assert (config.name, config.count) == ("Linear.Config", 3)


def test_constructors_are_counted_without_self_and_rest(tmp_path):
    files = {
        "a.py": """
            import dataclasses
            class Attention:
                def __init__(self, width, heads, *rest, mask=None, **options): ...
            class Cached(Attention):
                length: int = 0
            @dataclasses.dataclass
            class Point:
                x: int
                y: int
            class AttentionArgs:
                def __init__(self, a, b, c, d, e, f): ...
        """
    }
    config, constructor = sizes(tmp_path, files)
    assert (constructor.name, constructor.count) == ("Cached", 4)
    assert (config.name, config.count) == ("AttentionArgs", 6)


def test_a_config_file_may_be_the_largest_config(tmp_path):
    keys = "".join(f"key_{i}: 1\n" for i in range(9))
    config, _ = sizes(tmp_path, {"a.py": "", "base.yml": keys + "outer:\n  inner: 1\n"})
    assert (config.file, config.count) == ("base.yml", 10)


def test_classes_that_inherit_from_each_other_end(tmp_path):
    files = {"a.py": "class AConfig(BConfig):\n    x: int\nclass BConfig(AConfig):\n    y: int\n"}
    config, _ = sizes(tmp_path, files)
    assert config.count == 2
