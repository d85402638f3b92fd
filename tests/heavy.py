"""The cases that take longest, by their names: `make sweep` runs them, a third at a time.

Each stands beside quicker cases of the same kind of check, which the default run keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HEAVY = (
    # One composition of layers is compiled for each case: the small ones stay in the default run.
    r"test_one_forward\.py::.*\[(gated delta|mamba2|adapted mixture|mixture block with)",
    r"test_one_forward\.py::.*\[shared stack in",
    r"test_one_forward\.py::.*\[(unrolled stack|stack of a recurrent|shared stack of a recurrent)",
    r"test_one_forward\.py::.*\[(recurrent hybrid|mixture, biased|shared layers)",
    r"test_every_layer\.py::.*\[(recurrent-hybrid|shared-stack-of-mixtures|mixture-of-directed)",
    r"test_every_layer\.py::test_(bfloat16|sharded).*\[(stack-of-mixtures|hybrid|shared-stack)",
    r"test_gated_delta\.py::test_tokens_with_equal_keys_do_not_overflow\[(5|64)\]",
    r"test_quantized\.py::.*\[fp8\]",
    # One family or feature of many.
    r"test_merging\.py::.*computes_the_same\[(deepseek-v3|gemma3|gpt-oss|olmo2|phi3|qwen2|qwen3)",
    r"test_lora\.py::test_only_the_adapters_are_trained\[qwen3-30b-a3b\]",
    r"test_lora\.py::test_(an_imported_model_is|adapters_of_which_the_base)",
    r"test_distillation\.py::.*\[(qwen3-30b-a3b|deepseek-v3)\]",
    r"test_distillation\.py::test_from_a_run",
    r"test_registry\.py::test_the_tiny_form_trains_and_evaluates\[(qwen3-30b-a3b|deepseek-v3)\]",
    r"test_workload\.py::test_every_kernel_is_counted\[.*(deepseek-v3|tiny-hybrid|mixtral-8x7b)\]",
    r"test_workload\.py::test_no_family_is_slow_on_accelerators\[.*(gemma|gpt-oss|mixtral)",
    r"test_features\.py::test_a_feature_of_this_file_trains.*\[tiny-lm-(positions|optim|adapt|feed)",
    r"test_features\.py::test_a_plain_checkpoint_restores_into_the_wrapped_model",
    r"test_learning\.py::test_every_named_optimizer_learns\[(ad|r|s|n)",
    r"test_balance\.py::test_(every_mixture|the_training_loss_moves)",
    r"test_fine_tuning\.py::test_train_generate_and_export",
    r"test_mup\.py::test_the_coordinate_check",
    # Meshes: the dense model and one small mesh of each kind stay.
    r"test_equality\.py::.*\[(mixtral-8x7b: experts x fsdp|tiny-hybrid|deepseek-v3)",
    r"test_parallelism\.py::.*is_the_same\[mesh0\]",
    r"test_training\.py::test_the_bias_is_a_variable_that_training_moves\[gradients1\]",
    r"test_context_parallel\.py::test_it_is_what_one_device_computes\[.*eight",
    r"test_ring_kernels\.py::.*\[gpu(-Causal.*)?\]",
    r"test_sharding\.py::test_published_mixtures.*\[(gpt-oss|deepseek|qwen3)",
    r"test_outside\.py::test_it_trains_in_pipeline_stages\[(mixture|per-layer|shared)",
    r"test_outside\.py::test_(it_generates|step_by_step|it_trains_on_a).*\[.*(per-layer|shared)",
    r"test_outside\.py::test_it_generates.*\[mixture",
    r"test_kv_cache\.py::test_tokens_that_skip_a_layer.*\[cuts2",
    # Documents: README and the short ones stay.
    r"test_docs\.py::test_the_code_of_a_document_runs\[docs/(python|parallel|targets|kernels)\.md\]",
    r"test_docs\.py::test_the_code_of_a_document_runs\[docs/(memory|plan|goodput)\.md\]",
    # Outside packages: each trains and decodes by default, in one way.
    r"test_encoder_decoder\.py::",
    r"test_multi_axis_rotary\.py::test_(the_loss_falls|it_is_ordinary_rope|it_trains_on_a_mesh)",
    r"test_multi_axis_rotary\.py::test_stages_and_shards.*\[pipeline\]",
    r"test_multi_axis_rotary\.py::test_new_tokens_follow.*\[True\]",
    r"test_outside\.py::test_it_trains\[(hyper|shared)",
    r"test_outside\.py::test_step_by_step_equals.*\[(eight-mixture|one device-hyper)",
    r"test_score_biases\.py::test_on_a_mesh.*\[reference-",
    r"test_vision_transformer\.py::test_(it_learns|a_mesh|a_loss_of|an_evaluator)",
    r"test_outside\.py::test_(it_trains_on_a|it_generates_the_same).*\[hyper",
    # Kernels and layers: other masks, meshes and number formats stay.
    r"test_paged\.py::test_gradients_reach_the_blocks_of_the_pool\[chunk\]",
    r"test_score_bias\.py::test_ring\[(Full|Causal\(\)-mlp)",
    r"test_context_parallel\.py::test_a_ring_with_several_blocks_per_chunk\[causal",
    r"test_ring_kernels\.py::test_it_is_what_one_device_computes\[tpu-Sliding",
    r"test_tpu_kernels\.py::test_outputs_and_gradients\[Full",
    r"test_one_forward\.py::.*\[(recurrent|mixture of experts|mixture block|stack of a pattern)",
    r"test_quantized\.py::test_(a_mixture_of_rounded_experts|inside_experts)",
    r"test_equality\.py::.*\[tiny-lm: fsdp x ring x tensor",
    r"test_sharding\.py::test_sharded_experts_with_adapters.*\[experts and sequence\]",
    r"test_sharding\.py::test_gradients_of_experts_are_reduce_scattered\[adapted\]",
    r"learner/test_sharding\.py::test_sharded_equals_unsharded\[optimizer1",
    r"test_merging\.py::.*computes_the_same\[(gemma2|mistral)\]",
    r"test_ragged\.py::test_it_equals_each_copy_on_its_own_rows\[LowRank",
    r"test_side_outputs\.py::test_every_way_through.*\[sharded-eager\]",
    r"test_outside\.py::test_it_trains_in_pipeline_stages\[hyper",
    r"test_outside\.py::test_step_by_step_equals.*\[one device-mixture",
    r"test_parallelism\.py::test_a_sharded_residual_stream_is_the_same\[mesh1\]",
    r"test_(pairs|deletion)\.py::test_(a_step_is_traced_and_run|deleting_experts_deletes)",
    r"test_distillation\.py::test_the_divergence",
    r"test_plan\.py::test_machines_side_by_side",
    r"test_(sam|sophia)\.py::test_a_mesh_of_eight",
    r"test_(sam|sophia)\.py::test_a_(second_gradient|diagonal)_that_is_not_finite.*\[eight\]",
    r"test_ring_kernels\.py::test_caps_sinks_and_no_segments\[tpu\]",
    r"test_multi_token\.py::test_gradients_reach_every_head",
    r"test_blocks_and_sharing\.py::test_a_shared_stack_is_a_stack_of_equal_layers\[1\]",
    r"test_score_biases\.py::test_on_a_mesh.*\[blockwise-fire\]",
    r"test_progress\.py::test_progress_comes_before.*\[(config|plan).*-terminal\]",
    # Whole runs.
    r"test_object_store\.py::test_the_command_line_trains",
    r"test_trainer\.py::test_(skipped_batches_may|a_sweep_over_rate|far_too_many_epochs)",
    r"test_trainer\.py::test_(metrics_after_the_restored|a_finished_run_can|a_writer_on_a_full)",
    r"test_trainer\.py::test_a_gradient_that_is_not_finite.*\[(3|9)-",
    r"test_step_check\.py::test_a_lasting_fault_stops_the_run\[in its shard\]",
    r"test_bad_input\.py::test_a_run_folder_of_another_identity",
    r"test_train_and_generate\.py::test_the_closing_summary",
    r"test_goodput\.py::test_every_second_of_a_resumed_run",
    r"test_registry\.py::test_the_tiny_form_trains_and_evaluates\[tiny-lm\]",
    r"test_skip_spikes\.py::test_(a_damaged_record|what_is_not_finite|a_stop_of_a_policy)",
    r"test_run\.py::test_a_moved_run_is_used_and_continued_from_the_command_line",
    r"test_failures\.py::test_a_metric_that_is_not_a_number",
    r"test_own_components\.py::test_a_resumed_run",
    r"test_outside\.py::test_what_changes_without_the_package",
    r"test_pairs\.py::test_what_trains_to_no_number_fails",
    r"test_supervisor\.py::test_a_hang_is_found.*\[(SIGSTOP|asleep)\]",
    r"test_supervisor\.py::test_a_slow_start_is_no_hang",
    r"test_api\.py::test_chosen_steps_are_profiled",
    r"test_profiler\.py::test_a_run_that_resumes_or_stops.*\[steps0",
    r"test_checkpoint_integrity\.py::test_damaged_files_are_noticed\[(empty|zeroed)\]",
    r"test_progress\.py::test_progress_comes_before.*\[(doctor.*-terminal|plan.*--targets.*-pipe)\]",
    r"test_planner\.py::test_a_candidate_is_built_once",
    r"test_lora\.py::test_(a_merged_export|an_adapter_is|the_base_stays|a_run_without)",
    r"test_targets\.py::test_the_machine_that_is_here_runs\[cpu-8\]",
    r"test_step_check\.py::test_a_policy_cannot_continue",
    r"test_trainer\.py::test_a_finished_run_started_again",
    r"test_run\.py::test_a_run_is_used_and_continues_though_its_corpus",
    r"test_planner\.py::test_a_compiled_plan_builds_the_trainer_once",
    r"test_checkpoint_integrity\.py::test_any_mesh_reads_what_another_saved\[4096\]",
    r"test_examples\.py::test_own_input_learns_digits",
    r"test_examples\.py::test_(own_layer|own_trainer_loop_stops|train_and_generate_then)",
    r"test_skip_spikes\.py::test_the_limit_ends_the_run",
    r"test_sophia\.py::test_a_run_that_it_ends_names_the_extra",
    r"test_api\.py::test_ctrl_c_saves",
    r"test_trainer\.py::test_(another_mesh_gives|the_loss_falls)",
    r"test_examples\.py::test_(fine_tune_lora|own_input_as_a_script)",
    r"test_own_components\.py::test_other_runs_start_from_it",
    r"test_skip_spikes\.py::test_(a_resumed_run_still|a_spike_before_the_first)",
    r"test_trainer\.py::test_(parameter_groups_are_sharded|a_parameter_sharded_by_path)",
    r"test_trainer\.py::test_a_signal_finishes.*\[SIGTERM\]",
    r"test_trainer\.py::test_(an_offloaded_optimizer|accumulation_trains)",
    r"test_train_and_generate\.py::test_(a_run_is_held_against|a_kernel_that_a_step_prefers)",
    r"test_targets\.py::test_the_machine_that_is_here_runs\[cpu\]",
    r"test_search\.py::test_a_cached_program_is_not_compiled_again",
    r"test_plan\.py::test_a_search_without_a_compiler",
)

_PATTERN = re.compile("|".join(HEAVY))


def is_heavy(name: str) -> bool:
    """Returns whether a test, by its whole name, is one of these."""
    return _PATTERN.search(name) is not None


def stale_patterns(names: Iterable[str]) -> list[str]:
    """Returns the patterns that match no test: a renamed test would run by default unnoticed."""
    known = list(names)
    return [pattern for pattern in HEAVY if not any(re.search(pattern, name) for name in known)]
