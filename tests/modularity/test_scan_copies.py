"""CopyGroup of a feature and repeated model files are found; what only looks alike is not."""

import pytest

from dovetail.modularity.scan import feature_words, scan
from tests.modularity.code_base import write_files

ROPE = [feature_words("rope")]
APPLY = '''
def apply_rotary(query, key, cos, sin):
    """Turns."""
    half = query.shape[-1] // 2
    turned = concatenate([-query[..., half:], query[..., :half]])
    other = concatenate([-key[..., half:], key[..., :half]])
    return query * cos + turned * sin, key * cos + other * sin
'''
# The same with other names, an annotation and another docstring.
RENAMED = APPLY.replace("query", "q").replace("key", "k: Array", 1).replace("key", "k")
RENAMED = RENAMED.replace("apply_rotary", "apply_rope").replace("Turns.", "Rotates them.")
OTHER = """
def apply_rotary(x, positions):
    for frequency in self.frequencies:
        if frequency.scaled:
            x = x.at[positions].set(einsum("bsh,h->bs", x, frequency.table))
    return x.astype(self.dtype)
"""


def copies_in(tmp_path, files):
    feature = scan(write_files(tmp_path, files), ROPE).features[0]
    return feature, [[(each.file, each.name) for each in group.members] for group in feature.copies]


def test_renamed_copies_are_one_group(tmp_path):
    files = {"a.py": APPLY, "b.py": RENAMED, "c.py": APPLY, "d.py": OTHER}
    feature, groups = copies_in(tmp_path, files)
    assert groups == [[("a.py", "apply_rotary"), ("b.py", "apply_rope"), ("c.py", "apply_rotary")]]
    assert feature.summary()["copies"] == 2
    assert feature.summary()["most_copied_files"] == 3


def test_two_in_one_file_and_short_ones_are_no_copies(tmp_path):
    short = "def rope(x):\n    return x\n"
    _, groups = copies_in(tmp_path, {"a.py": APPLY + RENAMED, "b.py": short, "c.py": short})
    assert groups == []


def test_a_method_of_a_copied_class_is_not_counted_again(tmp_path):
    method = "\n".join(f"    {line}" for line in APPLY.strip().splitlines())
    _, groups = copies_in(tmp_path, {f"{n}.py": f"class Rotary:\n{method}\n" for n in "ab"})
    assert groups == [[("a.py", "Rotary"), ("b.py", "Rotary")]]


def model(name, lines):
    body = "\n".join(f"    {line}" for line in lines)
    return f'import {name}\n\n\nclass {name}Layer:  # of {name}\n    """For {name}."""\n\n{body}\n'


def repetition_of(tmp_path, files, **options):
    return scan(write_files(tmp_path, files), ROPE, **options).repetition


def test_a_repeated_model_file_is_found_under_another_name(tmp_path):
    lines = [f"field_{i}: int = {i}" for i in range(39)]
    fresh = [f"other_{i}: int = {i}" for i in range(39)]
    half = lines[:20] + fresh[:19]
    files = {
        "models/llama.py": model("Llama", lines),
        "models/qwen.py": model("Qwen", lines),
        "models/gemma.py": model("Gemma", half),
        "models/short.py": "x = 1\n",
        "layers/llama_copy.py": model("Llama", lines),
    }
    found = repetition_of(tmp_path, files)
    assert found.num_files == 3
    shares = {pair.file: pair.share for pair in found.pairs}
    assert shares["models/llama.py"] == 1.0
    assert shares["models/qwen.py"] == 1.0
    assert shares["models/gemma.py"] == pytest.approx(21 / 40)
    assert found.median == 1.0


def test_single_lines_are_alike_by_chance(tmp_path):
    files = {
        "models/a.py": "".join(f"a{i} = {i}\nb{i} = 0\nshared = 1\n" for i in range(10)),
        "models/b.py": "".join(f"c{i} = {i}\nd{i} = 0\nshared = 1\n" for i in range(10)),
    }
    found = repetition_of(tmp_path, files)
    assert found.pairs[0].share == 0.0


def test_one_model_is_not_compared_and_a_pattern_finds_models_elsewhere(tmp_path):
    lines = [f"field_{i}: int = {i}" for i in range(39)]
    files = {f"nets/{name}.py": model(name, lines) for name in ("Llama", "Qwen")}
    assert repetition_of(tmp_path, files) is None
    assert repetition_of(tmp_path, {}, models="nets/*.py").num_files == 2


def test_where_files_are_called_modeling_the_others_are_not_models(tmp_path):
    files = {
        f"models/{name}/{kind}_{name}.py": "x = 1\n" * 30
        for name in ("llama", "qwen")
        for kind in ("modeling", "configuration", "tokenization")
    }
    assert scan(write_files(tmp_path, files), ROPE).num_model_files == 2
