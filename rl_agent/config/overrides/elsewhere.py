"""Keys of WebGym, PolyRL, TRL, verl and prime-rl, and what they are here: for people who bring theirs along.

The one source of what an unknown key is answered with and of `docs/reference/keys-of-others.md`. What is
deliberately different is in `docs/how-to/come-from-webgym-or-polyrl.md` and
`docs/how-to/come-from-trl-verl-or-prime-rl.md`.
"""

WEBGYM = {
    "log_config.run_name": "run_name",
    "log_config.entity_name": "wandb.entity",
    "log_config.wandb_key_env_var": "wandb.wandb_key_env_var",
    "algorithm_config.deepspeed_config_filename": "trainer.deepspeed",
    "algorithm_config.gradient_checkpointing": "trainer.extra_args",
    "env_config.max_vllm_sessions": "rollout.max_vllm_sessions",
    "env_config.completion_threshold": "rollout.completion_threshold",
    "env_config.completion_grace_period": "rollout.completion_grace_period",
    "env_config.vllm_timeout": "rollout.request_timeout_s",
    "env_config.operation_timeout": "rollout.step_timeout_s",
    "env_config.max_retries": "rollout.request_retries",
    "env_config.vllm_server_url": "engine.url",
    "vllm_server_url": "engine.url",
    "policy_config.base_model": "model_config.base_model",
}
"""A key of its Hydra tree, and the key here."""

VERL = {
    "actor_rollout_ref.model.path": "model_config.base_model",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "trainer.parallel.activation_checkpointing",
    "actor_rollout_ref.model.use_liger": "trainer.parallel.use_liger_kernel",
    "actor_rollout_ref.actor.freeze_vision_tower": "trainer.freeze_vision_tower",
    "actor_rollout_ref.model.lora.rank": "trainer.lora.rank",
    "actor_rollout_ref.model.lora.alpha": "trainer.lora.alpha",
    "actor_rollout_ref.model.lora.target_modules": "trainer.lora.targets",
    "actor_rollout_ref.model.lora_rank": "trainer.lora.rank",
    "actor_rollout_ref.model.lora_alpha": "trainer.lora.alpha",
    "actor_rollout_ref.model.target_modules": "trainer.lora.targets",
    "actor_rollout_ref.model.trust_remote_code": "model_config.trust_remote_code",
    "actor_rollout_ref.hybrid_engine": "trainer.placement",
    "actor_rollout_ref.rollout.n": "rollout.group_size",
    "actor_rollout_ref.rollout.temperature": "policy_config.temperature",
    "actor_rollout_ref.rollout.top_p": "policy_config.top_p",
    "actor_rollout_ref.rollout.top_k": "policy_config.top_k",
    "actor_rollout_ref.rollout.val_kwargs.temperature": "policy_config.test_temperature",
    "actor_rollout_ref.rollout.val_kwargs.n": "env_config.test_tasks_repeat_times",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "engine.gpu_memory_utilization",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "engine.tensor_parallel_size",
    "actor_rollout_ref.rollout.data_parallel_size": "engine.data_parallel_size",
    "actor_rollout_ref.rollout.max_model_len": "engine.max_model_len",
    "actor_rollout_ref.rollout.max_num_seqs": "engine.max_num_seqs",
    "actor_rollout_ref.rollout.enforce_eager": "engine.enforce_eager",
    "actor_rollout_ref.rollout.dtype": "engine.dtype",
    "actor_rollout_ref.rollout.response_length": "policy_config.max_new_tokens",
    "actor_rollout_ref.rollout.seed": "seed",
    "actor_rollout_ref.rollout.free_cache_engine": "trainer.placement",
    "actor_rollout_ref.rollout.max_num_batched_tokens": "engine.extra_args",
    "actor_rollout_ref.rollout.enable_chunked_prefill": "engine.extra_args",
    "actor_rollout_ref.rollout.enable_prefix_caching": "engine.extra_args",
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": "env_config.train_difficulty_max_steps",
    "actor_rollout_ref.actor.optim.lr": "trainer.optimizer.learning_rate",
    "actor_rollout_ref.actor.optim.weight_decay": "trainer.optimizer.weight_decay",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "trainer.optimizer.warmup_steps",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "trainer.optimizer.schedule",
    "actor_rollout_ref.actor.grad_clip": "trainer.optimizer.max_grad_norm",
    "actor_rollout_ref.actor.optim.clip_grad": "trainer.optimizer.max_grad_norm",
    "actor_rollout_ref.actor.optim.warmup_style": "trainer.optimizer.schedule",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "trainer.batch.token_budget",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "trainer.mini_batches",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "trainer.batch.token_budget",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "trainer.batch.token_budget",
    "actor_rollout_ref.actor.use_kl_loss": "trainer.loss.kl_in",
    "actor_rollout_ref.actor.kl_loss_coef": "trainer.loss.kl_coefficient",
    "actor_rollout_ref.actor.kl_loss_type": "trainer.loss.kl_estimator",
    "actor_rollout_ref.actor.clip_ratio": "trainer.loss.clip_low",
    "actor_rollout_ref.actor.clip_ratio_low": "trainer.loss.clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "trainer.loss.clip_high",
    "actor_rollout_ref.actor.clip_ratio_c": "trainer.loss.dual_clip",
    "actor_rollout_ref.actor.tau_pos": "trainer.loss.sapo_temperature_positive",
    "actor_rollout_ref.actor.tau_neg": "trainer.loss.sapo_temperature_negative",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "trainer.loss.policy_loss",
    "actor_rollout_ref.actor.loss_agg_mode": "trainer.loss.normalization",
    "actor_rollout_ref.actor.loss_scale_factor": "trainer.loss.constant_length",
    "actor_rollout_ref.actor.entropy_coeff": "trainer.loss.entropy_coefficient",
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": "trainer.parallel.shard_size",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "trainer.parallel.offload_optimizer",
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": "trainer.parallel.reshard_after_forward",
    "actor_rollout_ref.actor.fsdp_config.model_dtype": "trainer.parallel.precision",
    "actor_rollout_ref.actor.use_torch_compile": "trainer.parallel.compile_layers",
    "algorithm.adv_estimator": "trainer.loss.advantage",
    "algorithm.norm_adv_by_std_in_grpo": "trainer.loss.advantage",
    "algorithm.use_kl_in_reward": "trainer.loss.kl_in",
    "algorithm.kl_penalty": "trainer.loss.kl_estimator",
    "algorithm.kl_ctrl.kl_coef": "trainer.loss.kl_coefficient",
    "algorithm.filter_groups.enable": "trainer.loss.drop_uninformative",
    "algorithm.filter_groups.max_num_gen_batches": "trainer.max_num_gen_batches",
    "algorithm.rollout_correction.rollout_is": "trainer.loss.correction",
    "algorithm.rollout_correction.rollout_is_threshold": "trainer.loss.correction_high",
    "algorithm.rollout_correction.rollout_rs": "trainer.loss.sequence_mask",
    "algorithm.rollout_correction.rollout_rs_threshold": "trainer.loss.sequence_mask_bound",
    "algorithm.rollout_correction.bypass_mode": "trainer.loss.proximal",
    "data.train_files": "env_config.train_tasks",
    "data.val_files": "env_config.test_tasks",
    "data.train_batch_size": "env_config.train_tasks_rollout_size",
    "data.max_prompt_length": "engine.max_model_len",
    "data.max_response_length": "policy_config.max_new_tokens",
    "data.seed": "seed",
    "data.trust_remote_code": "model_config.trust_remote_code",
    "data.apply_chat_template_kwargs": "model_config.chat_template_kwargs",
    "data.shuffle": "env_config.train_tasks_sampler",
    "data.val_batch_size": "env_config.test_tasks_rollout_size",
    "data.truncation": "context.kind",
    "reward.custom_reward_function.path": "env_config.default_env",
    "custom_reward_function.path": "env_config.default_env",
    "trainer.experiment_name": "run_name",
    "trainer.project_name": "wandb.project",
    "trainer.n_gpus_per_node": "trainer.nproc_per_node",
    "trainer.nnodes": "--num-nodes",
    "trainer.total_training_steps": "--max-iterations",
    "trainer.test_freq": "--eval-interval",
    "trainer.save_freq": "trainer.checkpoint.every",
    "trainer.resume_mode": "--resume",
    "trainer.total_epochs": "--max-iterations",
    "trainer.val_only": "--rollout-split",
    "trainer.default_local_dir": "--log-path",
    "trainer.max_actor_ckpt_to_keep": "trainer.checkpoint.keep",
    "trainer.logger": "wandb.mode",
}
"""A key of verl's `ppo_trainer`, and the key or flag here."""

POLYRL = {
    "actor_rollout_ref.rollout.rollout_manager.port": "pool.port",
    "actor_rollout_ref.rollout.rollout_manager.endpoint": "pool.host",
}
"""A key that PolyRL adds to verl's, and the key here."""

TRL = {
    "learning_rate": "trainer.optimizer.learning_rate",
    "num_generations": "rollout.group_size",
    "num_generations_eval": "env_config.test_tasks_repeat_times",
    "generation_batch_size": "env_config.train_tasks_rollout_size",
    "steps_per_generation": "trainer.mini_batches",
    "max_completion_length": "policy_config.max_new_tokens",
    "temperature": "policy_config.temperature",
    "top_p": "policy_config.top_p",
    "top_k": "policy_config.top_k",
    "min_p": "policy_config.min_p",
    "chat_template_kwargs": "model_config.chat_template_kwargs",
    "trust_remote_code": "model_config.trust_remote_code",
    "shuffle_dataset": "env_config.train_tasks_sampler",
    "max_tool_calling_iterations": "env_config.train_difficulty_max_steps",
    "loss_type": "trainer/recipe",
    "beta": "trainer.loss.kl_coefficient",
    "epsilon": "trainer.loss.clip_low",
    "epsilon_high": "trainer.loss.clip_high",
    "delta": "trainer.loss.dual_clip",
    "sapo_temperature_pos": "trainer.loss.sapo_temperature_positive",
    "sapo_temperature_neg": "trainer.loss.sapo_temperature_negative",
    "importance_sampling_level": "trainer.loss.policy_loss",
    "scale_rewards": "trainer.loss.advantage",
    "reward_weights": "rollout.reward_weights",
    "multi_objective_aggregation": "trainer.loss.rewards",
    "mask_truncated_completions": "trainer.loss.overlong",
    "entropy_coef": "trainer.loss.entropy_coefficient",
    "vllm_importance_sampling_correction": "trainer.loss.correction",
    "vllm_importance_sampling_mode": "trainer.loss.correction",
    "vllm_importance_sampling_clip_max": "trainer.loss.correction_high",
    "vllm_importance_sampling_clip_min": "trainer.loss.correction_low",
    "vllm_mode": "trainer.placement",
    "vllm_enable_sleep_mode": "trainer.placement",
    "vllm_server_host": "pool.host",
    "vllm_server_port": "pool.port",
    "vllm_gpu_memory_utilization": "engine.gpu_memory_utilization",
    "vllm_max_model_length": "engine.max_model_len",
    "vllm_tensor_parallel_size": "engine.tensor_parallel_size",
    "model_name_or_path": "model_config.base_model",
    "dataset_name": "env_config.train_tasks",
    "reward_funcs": "env_config.default_env",
    "use_peft": "trainer.lora.rank",
    "lora_r": "trainer.lora.rank",
    "lora_alpha": "trainer.lora.alpha",
    "lora_target_modules": "trainer.lora.targets",
    "per_device_train_batch_size": "trainer.batch.token_budget",
    "gradient_accumulation_steps": "trainer.batch.token_budget",
    "num_train_epochs": "--max-iterations",
    "lr_scheduler_type": "trainer.optimizer.schedule",
    "adam_beta1": "trainer.optimizer.beta1",
    "adam_beta2": "trainer.optimizer.beta2",
    "adam_epsilon": "trainer.optimizer.epsilon",
    "gradient_checkpointing": "trainer.parallel.activation_checkpointing",
    "bf16": "trainer.parallel.precision",
    "torch_compile": "trainer.parallel.compile_layers",
    "eval_steps": "--eval-interval",
    "save_steps": "trainer.checkpoint.every",
    "save_total_limit": "trainer.checkpoint.keep",
    "resume_from_checkpoint": "--resume",
    "report_to": "wandb.mode",
}
"""A flag of TRL's `trl grpo`, and the key, flag or config group here: fields of `GRPOConfig`, which is one of
transformers' `TrainingArguments`, of `ModelConfig`, `ScriptArguments` and `GRPOScriptArguments`."""

PRIME_RL = {
    "model.name": "model_config.base_model",
    "max_steps": "--max-iterations",
    "seq_len": "engine.max_model_len",
    "output_dir": "--log-path",
    "ckpt.interval": "trainer.checkpoint.every",
    "ckpt.resume_step": "--resume",
    "ckpt.keep_last": "trainer.checkpoint.keep",
    "wandb.name": "run_name",
    "wandb.offline": "wandb.mode",
    "dry_run": "--dry-run",
    "deployment.num_train_gpus": "trainer.nproc_per_node",
    "deployment.num_train_nodes": "--num-nodes",
    "weight_broadcast.type": "weights.transport",
    "weight_broadcast.port": "weights.port",
    "inference.parallel.tp": "engine.tensor_parallel_size",
    "inference.parallel.dp": "engine.data_parallel_size",
    "orchestrator.batch_size": "env_config.train_tasks_rollout_size",
    "orchestrator.group_size": "rollout.group_size",
    "orchestrator.max_steps": "--max-iterations",
    "orchestrator.seq_len": "engine.max_model_len",
    "trainer.scheduler.type": "trainer.optimizer.schedule",
    "trainer.scheduler.warmup_steps": "trainer.optimizer.warmup_steps",
    "trainer.scheduler.decay_steps": "trainer.optimizer.decay_steps",
    "trainer.loss.kl_tau": "trainer.loss.kl_coefficient",
    "trainer.loss.type": "trainer/recipe",
    "orchestrator.max_off_policy_steps": "trainer.batch.max_staleness",
    "orchestrator.max_inflight_rollouts": "env_config.server_size",
    "orchestrator.oversampling_factor": "trainer.max_num_gen_batches",
    "orchestrator.train.env": "env_config.kinds",
    "orchestrator.train.sampling.temperature": "policy_config.temperature",
    "orchestrator.train.sampling.max_completion_tokens": "policy_config.max_new_tokens",
    "orchestrator.eval.interval": "--eval-interval",
    "orchestrator.eval.env": "env_config.test_tasks",
    "orchestrator.eval.num_examples": "env_config.test_tasks_rollout_size",
    "orchestrator.eval.group_size": "env_config.test_tasks_repeat_times",
    "orchestrator.eval.sampling.temperature": "policy_config.test_temperature",
    "trainer.optim.lr": "trainer.optimizer.learning_rate",
    "trainer.optim.weight_decay": "trainer.optimizer.weight_decay",
    "trainer.optim.max_norm": "trainer.optimizer.max_grad_norm",
    "trainer.optim.betas1": "trainer.optimizer.beta1",
    "trainer.optim.betas2": "trainer.optimizer.beta2",
    "trainer.model.seq_len": "trainer.batch.token_budget",
    "trainer.model.fused_lm_head_token_chunk_size": "trainer.batch.logits_chunk_tokens",
    "trainer.model.ac.freq": "trainer.parallel.activation_checkpointing",
    "trainer.model.optim_cpu_offload": "trainer.parallel.offload_optimizer",
    "trainer.model.reshard_after_forward": "trainer.parallel.reshard_after_forward",
    "trainer.model.dp_replicate": "trainer.parallel.shard_size",
    "trainer.model.compile": "trainer.parallel.compile_layers",
    "trainer.model.lora.rank": "trainer.lora.rank",
    "trainer.model.lora.alpha": "trainer.lora.alpha",
    "trainer.model.lora.target_modules": "trainer.lora.targets",
}
"""A key of prime-rl's `rl.toml`, and the key or flag here."""

VERL_BEGINNINGS = {"weight_sender_rpyc_": "weights.port", "mooncake_transfer_": "weights.transport"}
"""The beginnings of PolyRL's keys of the rollout manager, and the key here."""

_ONE_LOOP = "one event loop serves all episodes"
_DURABLE = "every episode is on the disk as it ends"
_CONNECTIONS = "engines fetch weights over as many connections as help"
_ONCE = "every sample is trained on once; trainer.mini_batches makes several steps of them"
_PACKED = "sequences are packed end to end, without padding"
_SHOWN = "every episode is on the disk, and the page shows it"
_SCORED = "what is scored is cut by trainer.batch.token_budget, as what is trained on"
_NO_CRITIC = "no estimator has a value function"
NOT_NEEDED = {
    "http_pools": _ONE_LOOP,
    "wait_timeout": _ONE_LOOP,
    "evaluation_workers": _ONE_LOOP,
    "screenshot_comparison_workers": _ONE_LOOP,
    "save_every_percent": _DURABLE,
    "save_traj_progress": _DURABLE,
    "max_assigned_batches_per_stats_check": "pool.policy places every request",
    "num_mooncake_groups_per_sender": _CONNECTIONS,
    "num_mooncake_engines_per_group": _CONNECTIONS,
    "min_stream_batch_size": "each group is taken as soon as it is complete",
    "num_iterations": _ONCE,
    "ppo_epochs": _ONCE,
    "use_vllm": "episodes always come from engines",
    "pad_to_multiple_of": _PACKED,
    "use_remove_padding": _PACKED,
    "use_dynamic_bsz": "micro-batches are always filled to trainer.batch.token_budget",
    "balance_batch": "micro-batches of all ranks are always of about equal cost",
    "log_prob_use_dynamic_bsz": _SCORED,
    "log_prob_max_token_len_per_gpu": _SCORED,
    "log_prob_micro_batch_size": _SCORED,
    "log_prob_micro_batch_size_per_gpu": _SCORED,
    "param_offload": "weights stay on the GPUs; trainer.parallel.offload_optimizer moves the moments",
    "filter_overlong_prompts": "an episode whose prompt is too long fails alone, and is counted as such",
    "rollout.name": "a node's own engine is vLLM; SGLang joins a pool",
    "gamma": _NO_CRITIC,
    "lam": _NO_CRITIC,
    "critic_warmup": _NO_CRITIC,
    "val_before_train": "the first iteration is always evaluated, with the weights before its update",
    "log_completions": _SHOWN,
    "log_val_generations": _SHOWN,
    "rollout_data_dir": _SHOWN,
    "validation_data_dir": _SHOWN,
    "use_bias_correction_kl": "the KL term is always weighted to the policy's",
}
"""The end of a key of theirs that nothing stands for here, and why."""

_ONE_GPU = "one GPU computes a sequence; the plan refuses responses that do not fit its memory"
_ROUTES = "engine and trainer choose experts each; trainer.loss.correction=mask leaves out tokens that differ"
_EXPERTS = "experts are divided among ranks as all weights are"
_HALF = "trainers compute in bf16 or fp32, and engines take no quantized weights while they run"
NOT_OFFERED = {
    "ulysses_sequence_parallel_size": _ONE_GPU,
    "model.cp": _ONE_GPU,
    "enable_rollout_routing_replay": _ROUTES,
    "enable_router_replay": _ROUTES,
    "rollout.expert_parallel_size": _EXPERTS,
    "model.ep": _EXPERTS,
    "rollout.quantization": _HALF,
    "model.fp8": _HALF,
    "quantize_in_weight_transfer": _HALF,
}
"""The end of a key of theirs for what is not done here, and what is done instead."""


def name_here(key: str) -> str | None:
    """Return the key, group or flag that stands here for a key of theirs; None if it is none of those."""
    last = key.rpartition(".")[2]
    begins = (here for start, here in VERL_BEGINNINGS.items() if last.startswith(start))
    tables = (WEBGYM, POLYRL, VERL, TRL, PRIME_RL)
    return next((table[key] for table in tables if key in table), None) or next(begins, None)


def why_none(key: str) -> str | None:
    """Return why nothing stands here for a key of theirs; None if it is none of those."""
    tables = {"none is needed": NOT_NEEDED, "that is not offered": NOT_OFFERED}
    reasons = (
        f"{words} here: {reason}"
        for words, table in tables.items()
        for end, reason in table.items()
        if f".{key}".endswith(f".{end}")
    )
    return next(reasons, None)
