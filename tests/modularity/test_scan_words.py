"""Whole words of identifiers, however they are written."""

import re

import pytest

from dovetail.config import ConfigError
from dovetail.modularity.scan import FeatureWords, builtin_words, feature_words, split_words


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("apply_rotary_emb", ("apply", "rotary", "emb")),
        ("RotaryEmbedding", ("rotary", "embedding")),
        ("_useRope2D", ("use", "rope", "2", "d")),
        ("RoPEScaling", ("ro", "pe", "scaling")),
        ("MLAConfig", ("mla", "config")),
        ("fp8", ("fp", "8")),
        ("__", ()),
    ],
)
def test_identifiers_are_split(identifier, words):
    assert split_words(identifier) == words


@pytest.mark.parametrize(
    ("feature", "yes", "no"),
    [
        ("rope", "rope_theta ROPE useRope RoPE MRoPESection apply_rotary_emb precompute_freqs_cis",
         "europe scope property scoped freqs telescope RotaryBucketAllocator"),
        ("moe", "MoELayer SparseMoeBlock num_experts expert_parallel", "memo expertise Moebius"),
        ("lora", "LoraConfig lora_rank LoRALinear", "q_lora_rank kv_lora_rank color flora"),
        ("alibi", "ALiBi alibi_slopes use_alibi", "ali_bias calibrate"),
        ("qk_norm", "use_qk_norm q_norm QKNorm key_layernorm", "norm qk quick_norm"),
        ("sliding_window", "SlidingWindow sliding_window_size local_attention", "window sliding"),
        ("soft_cap", "attn_logit_softcapping soft_cap logit_cap", "soft cap capacity"),
        ("fp8", "fp8_linear Float8Linear use_fp8", "fp16 fp float32"),
        ("quantization", "QuantizationConfig quantize", "quantity quantile"),
    ],
)  # fmt: skip
def test_built_in_words_name_the_feature_and_nothing_else(feature, yes, no):
    words = feature_words(feature)
    assert [name for name in yes.split() if not words.match(name)] == []
    assert [name for name in no.split() if words.match(name)] == []


@pytest.mark.parametrize("feature", builtin_words())
def test_the_quick_pattern_passes_over_no_word(feature):
    words = feature_words(feature)
    pattern = re.compile(words.pattern, re.IGNORECASE)
    for word in words.words:
        assert pattern.search(word)
        assert words.match(word)


def test_the_name_of_a_model_is_not_the_feature():
    words = feature_words("moe").ignoring([("qwen", "3", "moe"), ("llama",), ("moe",)])
    assert not words.match("Qwen3MoeRMSNorm")
    assert not words.match("qwen3_moe")
    assert words.match("Qwen3MoeSparseMoeBlock")
    assert words.match("MoeLayer"), "a folder called only for the feature is not a model"


def test_own_words_take_the_place_of_built_in_ones():
    words = feature_words("rope", ["spiral"])
    assert words.match("SpiralPositions")
    assert not words.match("rope")


def test_a_feature_without_words_is_refused():
    message = "no built-in words for the feature 'ropes'.*rope, .*--words ropes"
    with pytest.raises(ConfigError, match=message):
        feature_words("ropes")
    with pytest.raises(ConfigError, match="has no words"):
        FeatureWords("rope", ["_"])
