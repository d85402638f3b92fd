"""Rules: which is chosen, what it makes of experiments of different sizes, and users' own."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import ConfigError, apply_modifier, explain, identity, select
from dovetail.experiments import find_experiment
from dovetail.layers import Stack
from dovetail.learner import Accumulate
from dovetail.parallel import KeepAll, KeepDots, KeepNothing, KeepTags, MeshLayout, OffloadTags
from dovetail.targets import (
    apply_target,
    find_rule,
    fit_mesh,
    parse_target,
    registry,
    target_rule,
    weigh,
)


def fitted(experiment: str, target: str) -> Any:
    return apply_target(find_experiment(experiment).config(), target).config


def mesh(config: Any) -> dict[str, int]:
    target = {axis: getattr(config.mesh, axis) for axis in ("data", "fsdp", "expert", "model")}
    return {axis: size for axis, size in target.items() if size != 1}


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ("tpu-v4-8", "tpu-pod"),
        ("2xtpu-7x-128", "tpu-pod"),
        ("gpu-gb200-72", "gpu-cluster"),
        ("trn2-64", "trainium"),
        ("cpu", "cpu"),
        ("cpu-8", "cpu"),
    ],
)
def test_a_rule_is_for_a_kind_of_hardware(target: str, rule: str) -> None:
    assert find_rule(parse_target(target)).name == rule


def test_the_meshes_known_to_work_are_what_rules_choose() -> None:
    """Small: fsdp inside, data outside. Big: fsdp over everything. Very big on GPUs: model 8."""
    assert mesh(fitted("llama2-7b", "tpu-v5p-512")) == {"data": -1, "fsdp": 64}
    assert mesh(fitted("llama2-70b", "tpu-v5p-1024")) == {"fsdp": -1}
    assert mesh(fitted("llama2-70b", "gpu-h100-512")) == {"fsdp": -1, "model": 8}


def test_slices_share_nothing_but_the_batch() -> None:
    assert mesh(fitted("llama2-7b", "2xtpu-v5e-256")) == {"data": 2, "fsdp": -1}


def test_a_cluster_of_gpus_is_one_slice_of_many_hosts() -> None:
    """So fsdp goes over the network where the links of one host are not enough."""
    machine = parse_target("gpu-h100-256")
    assert machine.devices_per_slice > machine.chip.linked_chips
    assert mesh(fitted("llama2-7b", "gpu-h100-256")) == {"data": -1, "fsdp": 64}


def test_the_devices_of_a_trainium_chip_share_layers() -> None:
    config = fitted("llama2-70b", "trn2-1024")
    assert config.mesh.model == 4
    shape = config.mesh.build().shape(4096)
    assert config.input.batch_size % (shape["data"] * shape["fsdp"]) == 0


def test_narrow_experts_are_not_shared_by_gpus() -> None:
    assert fitted("qwen3-30b-a3b", "gpu-b200-512").mesh.model == 1


def test_what_is_kept_depends_on_the_memory() -> None:
    def remat(experiment: str, target: str) -> Any:
        return fitted(experiment, target).model.decoder.stack.remat

    assert isinstance(remat("tiny-lm", "tpu-v5p-8"), KeepAll.Config)
    assert isinstance(remat("llama2-7b", "tpu-v5p-512"), KeepDots.Config)
    assert isinstance(remat("llama2-70b", "tpu-v5p-1024"), KeepTags.Config)


@pytest.mark.parametrize(
    ("modifier", "kept"),
    [
        ("remat:keep=nothing", KeepNothing),
        ("offload", OffloadTags),
        ("remat:keep=everything", KeepAll),
    ],
)
def test_what_was_asked_for_is_kept(modifier: str, kept: Any) -> None:
    config = apply_modifier(find_experiment("llama2-7b").config(), modifier)
    targeted = apply_target(config, "tpu-v5p-512")
    assert isinstance(targeted.config.model.decoder.stack.remat, kept.Config)
    assert "remat" not in targeted.told()
    assert mesh(targeted.config) == {"data": -1, "fsdp": 64}


def test_who_asks_to_keep_more_gets_smaller_parts() -> None:
    plain = find_experiment("llama2-7b").config()
    assert not isinstance(
        apply_target(plain, "tpu-v5p-512").config.learner.gradients, Accumulate.Config
    )
    asked = apply_modifier(plain, "remat:keep=everything")
    gradients = apply_target(asked, "tpu-v5p-512").config.learner.gradients
    assert isinstance(gradients, Accumulate.Config)
    assert gradients.microbatches == 4


def test_what_a_rule_chose_another_may_change() -> None:
    chosen = fitted("llama2-7b", "tpu-v5p-512")
    assert isinstance(chosen.model.decoder.stack.remat, KeepDots.Config)
    again = apply_target(chosen, "tpu-v5e-256").config
    expected = fitted("llama2-7b", "tpu-v5e-256").model.decoder.stack.remat
    assert again.model.decoder.stack.remat == expected != chosen.model.decoder.stack.remat


def test_a_stack_in_new_loops_asks_for_nothing_by_itself() -> None:
    plain = find_experiment("llama2-7b").config()
    config = apply_modifier(plain, "moe-every:num_experts=4,every=2")
    remats = [stack.remat for stack in select(apply_target(config, "tpu-v5p-512").config, Stack)]
    assert remats
    assert not any(isinstance(remat, KeepAll.Config) for remat in remats)


def test_a_batch_goes_through_in_parts_where_activations_ask_for_it() -> None:
    gradients = fitted("llama2-70b", "gpu-h100-512").learner.gradients
    assert isinstance(gradients, Accumulate.Config)
    assert gradients.microbatches == 4
    assert not isinstance(fitted("llama2-7b", "tpu-v5p-512").learner.gradients, Accumulate.Config)


@pytest.mark.parametrize("target", ["tpu-v5p-512", "gpu-h100-512", "trn2-1024", "cpu-8"])
def test_a_target_leaves_a_run_what_it_is(target: str) -> None:
    config = find_experiment("llama2-70b").config()
    assert identity(apply_target(config, target).config) == identity(config)
    assert config == find_experiment("llama2-70b").config(), "the argument is not changed"


def test_sizes_that_do_not_divide_are_not_split() -> None:
    size = weigh(find_experiment("gpt2").config())
    assert size.divisors["vocab"] == 50257
    assert fit_mesh(size, parse_target("gpu-h100-8"), model=8).model == 1
    heads = weigh(find_experiment("qwen3-30b-a3b").config())
    assert heads.divisors["kv_heads"] == 4
    assert fit_mesh(heads, parse_target("gpu-h100-8"), model=8).model == 4


def test_more_devices_than_sequences_share_layers() -> None:
    size = weigh(find_experiment("llama2-7b").config())
    fit = fit_mesh(size, parse_target("tpu-v5p-4096"))
    assert (fit.shards, fit.model) == (1024, 2)


def test_sizes_are_read_from_specs() -> None:
    size = weigh(find_experiment("llama2-7b").config())
    assert (size.layers, size.width, size.batch_size) == (32, 4096, 1024)
    assert size.parameters == size.active_parameters == 6738415616
    # Four products of attention, two into the feed-forward and one out of it; and the logits.
    layer = 5 * 4096 + 2 * 11008
    assert size.outputs_per_token in (32 * layer, 32 * layer + 32000)
    experts = weigh(find_experiment("mixtral-8x7b").config())
    assert experts.active_parameters < experts.parameters / 3


def test_values_say_that_the_target_set_them() -> None:
    config = fitted("llama2-7b", "tpu-v5p-512")
    origins = {line.path: str(line.origin) for line in explain(config)}
    assert "--target tpu-v5p-512" in origins["mesh.fsdp"]


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))


@pytest.mark.usefixtures("own_rules")
def test_a_users_rule_is_asked_first() -> None:
    @target_rule("ours", "tpu-v5p-*")
    def ours(config: Any, machine: Any) -> Any:
        """Everything by data."""
        config.mesh = MeshLayout.Config(data=-1, fsdp=1)
        return config

    targeted = apply_target(find_experiment("tiny-lm").config(), "tpu-v5p-16")
    assert targeted.rule.about == "Everything by data."
    assert "rule ours changes mesh.data: 1 -> -1; mesh.fsdp: -1 -> 1" in targeted.told()
    assert "mesh.fsdp" not in targeted.told(but=["mesh.fsdp"])
    assert find_rule(parse_target("tpu-v6e-8")).name == "tpu-pod"


@pytest.mark.usefixtures("own_rules")
def test_a_rule_must_return_the_experiment() -> None:
    @target_rule("forgetful", "cpu")
    def forgetful(config: Any, machine: Any) -> Any:
        config.mesh.fsdp = 1

    with pytest.raises(ConfigError, match=r"'forgetful' returned NoneType.*`return config`"):
        apply_target(find_experiment("tiny-lm").config(), "cpu")


def test_no_rule_is_an_error_that_lists_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    find_rule(parse_target("cpu"))
    rules = {name: rule for name, rule in registry._rules.items() if name != "trainium"}
    monkeypatch.setattr(registry, "_rules", rules)
    with pytest.raises(ConfigError, match=r"no rule is for trn2-16.*tpu-pod for tpu-\*"):
        find_rule(parse_target("trn2-16"))
