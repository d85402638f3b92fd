"""Rules: selection, what they choose for experiments of different sizes, and user rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.config import ConfigError, Registry, apply_modifier, explain, identity, select
from dovetail.experiments import find_experiment
from dovetail.layers import Stack
from dovetail.learner import Accumulate
from dovetail.parallel import MeshLayout, OffloadNamed, SaveAll, SaveDots, SaveNamed, SaveNothing
from dovetail.targets import (
    apply_target,
    choose_mesh,
    config_size,
    find_rule,
    parse_target,
    target_rule,
    target_rules,
)
from dovetail.targets import rule as rule_module


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


def test_rules_choose_the_meshes_known_to_work() -> None:
    """Small: fsdp inside, data outside. Big: fsdp over everything. Very big on GPUs: model 8."""
    assert mesh(fitted("llama2-7b", "tpu-v5p-512")) == {"data": -1, "fsdp": 64}
    assert mesh(fitted("llama2-70b", "tpu-v5p-1024")) == {"fsdp": -1}
    assert mesh(fitted("llama2-70b", "gpu-h100-512")) == {"fsdp": -1, "model": 8}


def test_only_the_batch_is_sharded_over_slices() -> None:
    assert mesh(fitted("llama2-7b", "2xtpu-v5e-256")) == {"data": 2, "fsdp": -1}


def test_a_cluster_of_gpus_is_one_slice_of_many_hosts() -> None:
    """So fsdp uses the network if one host is not enough."""
    machine = parse_target("gpu-h100-256")
    assert machine.devices_per_slice > machine.chip.linked_chips
    assert mesh(fitted("llama2-7b", "gpu-h100-256")) == {"data": -1, "fsdp": 64}


def test_trainium_has_tensor_parallelism_within_a_chip() -> None:
    config = fitted("llama2-70b", "trn2-1024")
    assert config.mesh.model == 4
    shape = config.mesh.build().shape(4096)
    assert config.input.batch_size % (shape["data"] * shape["fsdp"]) == 0


def test_narrow_experts_have_no_tensor_parallelism() -> None:
    assert fitted("qwen3-30b-a3b", "gpu-b200-512").mesh.model == 1


def test_remat_depends_on_the_memory() -> None:
    def remat(experiment: str, target: str) -> Any:
        return fitted(experiment, target).model.decoder.stack.remat

    assert isinstance(remat("tiny-lm", "tpu-v5p-8"), SaveAll.Config)
    assert isinstance(remat("llama2-7b", "tpu-v5p-512"), SaveDots.Config)
    assert isinstance(remat("llama2-70b", "tpu-v5p-1024"), SaveNamed.Config)


@pytest.mark.parametrize(
    ("modifier", "policy"),
    [
        ("remat:save=nothing", SaveNothing),
        ("offload", OffloadNamed),
        ("remat:save=everything", SaveAll),
    ],
)
def test_an_explicit_remat_policy_is_not_changed(modifier: str, policy: Any) -> None:
    config = apply_modifier(find_experiment("llama2-7b").config(), modifier)
    targeted = apply_target(config, "tpu-v5p-512")
    assert isinstance(targeted.config.model.decoder.stack.remat, policy.Config)
    assert "remat" not in targeted.summary()
    assert mesh(targeted.config) == {"data": -1, "fsdp": 64}


def test_saving_more_takes_more_microbatches() -> None:
    plain = find_experiment("llama2-7b").config()
    assert not isinstance(
        apply_target(plain, "tpu-v5p-512").config.learner.gradients, Accumulate.Config
    )
    explicit = apply_modifier(plain, "remat:save=everything")
    gradients = apply_target(explicit, "tpu-v5p-512").config.learner.gradients
    assert isinstance(gradients, Accumulate.Config)
    assert gradients.microbatches == 4


def test_a_rule_may_change_the_choice_of_another() -> None:
    chosen = fitted("llama2-7b", "tpu-v5p-512")
    assert isinstance(chosen.model.decoder.stack.remat, SaveDots.Config)
    again = apply_target(chosen, "tpu-v5e-256").config
    expected = fitted("llama2-7b", "tpu-v5e-256").model.decoder.stack.remat
    assert again.model.decoder.stack.remat == expected != chosen.model.decoder.stack.remat


def test_a_replaced_stack_has_no_explicit_remat() -> None:
    plain = find_experiment("llama2-7b").config()
    config = apply_modifier(plain, "moe-every:num_experts=4,every=2")
    remats = [stack.remat for stack in select(apply_target(config, "tpu-v5p-512").config, Stack)]
    assert remats
    assert not any(isinstance(remat, SaveAll.Config) for remat in remats)


def test_large_activations_take_microbatches() -> None:
    gradients = fitted("llama2-70b", "gpu-h100-512").learner.gradients
    assert isinstance(gradients, Accumulate.Config)
    assert gradients.microbatches == 4
    assert not isinstance(fitted("llama2-7b", "tpu-v5p-512").learner.gradients, Accumulate.Config)


@pytest.mark.parametrize("target", ["tpu-v5p-512", "gpu-h100-512", "trn2-1024", "cpu-8"])
def test_a_target_does_not_change_the_identity_of_a_run(target: str) -> None:
    config = find_experiment("llama2-70b").config()
    assert identity(apply_target(config, target).config) == identity(config)
    assert config == find_experiment("llama2-70b").config(), "the argument is not changed"


def test_sizes_that_do_not_divide_are_not_sharded() -> None:
    size = config_size(find_experiment("gpt2").config())
    assert size.divisors["vocab"] == 50257
    assert choose_mesh(size, parse_target("gpu-h100-8"), model=8).model == 1
    heads = config_size(find_experiment("qwen3-30b-a3b").config())
    assert heads.divisors["kv_heads"] == 4
    assert choose_mesh(heads, parse_target("gpu-h100-8"), model=8).model == 4


def test_more_devices_than_sequences_take_tensor_parallelism() -> None:
    size = config_size(find_experiment("llama2-7b").config())
    mesh = choose_mesh(size, parse_target("tpu-v5p-4096"))
    assert (mesh.batch_shards, mesh.model) == (1024, 2)


def test_sizes_are_read_from_specs() -> None:
    size = config_size(find_experiment("llama2-7b").config())
    assert (size.layers, size.width, size.batch_size) == (32, 4096, 1024)
    assert size.parameters == size.active_parameters == 6738415616
    # Four products of attention, two into the feed-forward and one out of it; and the logits.
    layer = 5 * 4096 + 2 * 11008
    assert size.outputs_per_token in (32 * layer, 32 * layer + 32000)
    experts = config_size(find_experiment("mixtral-8x7b").config())
    assert experts.active_parameters < experts.parameters / 3


def test_provenance_names_the_target() -> None:
    config = fitted("llama2-7b", "tpu-v5p-512")
    origins = {line.path: str(line.origin) for line in explain(config)}
    assert "--target tpu-v5p-512" in origins["mesh.fsdp"]


@pytest.fixture
def own_rules() -> Iterator[None]:
    with rule_module._rules.restored():
        yield


@pytest.mark.usefixtures("own_rules")
def test_a_user_rule_takes_precedence() -> None:
    @target_rule("ours", "tpu-v5p-*")
    def ours(config: Any, machine: Any) -> Any:
        """Everything by data."""
        config.mesh = MeshLayout.Config(data=-1, fsdp=1)
        return config

    targeted = apply_target(find_experiment("tiny-lm").config(), "tpu-v5p-16")
    assert targeted.rule.about == "Everything by data."
    assert "rule ours changes mesh.data: 1 -> -1; mesh.fsdp: -1 -> 1" in targeted.summary()
    assert "mesh.fsdp" not in targeted.summary(exclude=["mesh.fsdp"])
    assert find_rule(parse_target("tpu-v6e-8")).name == "tpu-pod"


@pytest.mark.usefixtures("own_rules")
def test_a_rule_must_return_the_experiment() -> None:
    @target_rule("forgetful", "cpu")
    def forgetful(config: Any, machine: Any) -> Any:
        config.mesh.fsdp = 1

    with pytest.raises(ConfigError, match=r"'forgetful' returned NoneType.*`return config`"):
        apply_target(find_experiment("tiny-lm").config(), "cpu")


def test_no_matching_rule_is_an_error_that_lists_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: Registry[Any] = Registry("target rule")
    for rule in target_rules():
        if rule.name != "trainium":
            rules.register(rule.name, rule, rule.apply.__module__)
    monkeypatch.setattr(rule_module, "_rules", rules)
    with pytest.raises(ConfigError, match=r"no rule is for trn2-16.*tpu-pod for tpu-\*"):
        find_rule(parse_target("trn2-16"))
