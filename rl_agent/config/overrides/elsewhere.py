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
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": "env_config.train_difficulty_max_steps",
    "actor_rollout_ref.actor.optim.lr": "trainer.optimizer.learning_rate",
    "actor_rollout_ref.actor.optim.weight_decay": "trainer.optimizer.weight_decay",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "trainer.optimizer.warmup_steps",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "trainer.optimizer.schedule",
    "actor_rollout_ref.actor.grad_clip": "trainer.optimizer.max_grad_norm",
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
    "reward.custom_reward_function.path": "env_config.default_env",
    "trainer.experiment_name": "run_name",
    "trainer.project_name": "wandb.project",
    "trainer.n_gpus_per_node": "trainer.nproc_per_node",
    "trainer.nnodes": "--num-nodes",
    "trainer.total_training_steps": "--max-iterations",
    "trainer.test_freq": "--eval-interval",
    "trainer.save_freq": "trainer.checkpoint.every",
    "trainer.resume_mode": "--resume",
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
}
"""A field of TRL's `GRPOConfig`, and the key or config group here."""

PRIME_RL = {
    "model.name": "model_config.base_model",
    "max_steps": "--max-iterations",
    "seq_len": "engine.max_model_len",
    "output_dir": "--log-path",
    "ckpt.interval": "trainer.checkpoint.every",
    "ckpt.resume_step": "--resume",
    "wandb.name": "run_name",
    "deployment.num_train_gpus": "trainer.nproc_per_node",
    "inference.parallel.tp": "engine.tensor_parallel_size",
    "inference.parallel.dp": "engine.data_parallel_size",
    "orchestrator.batch_size": "env_config.train_tasks_rollout_size",
    "orchestrator.group_size": "rollout.group_size",
    "trainer.scheduler.type": "trainer.optimizer.schedule",
    "trainer.scheduler.warmup_steps": "trainer.optimizer.warmup_steps",
    "trainer.scheduler.decay_steps": "trainer.optimizer.decay_steps",
    "trainer.loss.kl_tau": "trainer.loss.kl_coefficient",
    "orchestrator.max_off_policy_steps": "trainer.batch.max_staleness",
    "orchestrator.max_inflight_rollouts": "env_config.server_size",
    "orchestrator.oversampling_factor": "trainer.max_num_gen_batches",
    "orchestrator.train.env": "env_config.kinds",
    "orchestrator.train.sampling.temperature": "policy_config.temperature",
    "orchestrator.train.sampling.max_completion_tokens": "policy_config.max_new_tokens",
    "orchestrator.eval.interval": "--eval-interval",
    "orchestrator.eval.group_size": "env_config.test_tasks_repeat_times",
    "orchestrator.eval.sampling.temperature": "policy_config.test_temperature",
    "trainer.optim.lr": "trainer.optimizer.learning_rate",
    "trainer.optim.weight_decay": "trainer.optimizer.weight_decay",
    "trainer.optim.max_norm": "trainer.optimizer.max_grad_norm",
    "trainer.optim.betas1": "trainer.optimizer.beta1",
    "trainer.optim.betas2": "trainer.optimizer.beta2",
    "trainer.model.seq_len": "trainer.batch.token_budget",
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
    "num_iterations": "every sample is trained on once; trainer.mini_batches makes several steps of them",
    "use_vllm": "episodes always come from engines",
    "pad_to_multiple_of": "sequences are packed end to end, without padding",
    "use_remove_padding": "sequences are packed end to end, without padding",
    "use_dynamic_bsz": "micro-batches are always filled to trainer.batch.token_budget",
    "log_completions": "every episode is on the disk, and the page shows it",
    "use_bias_correction_kl": "the KL term is always weighted to the policy's",
}
"""The last part of a key of theirs that nothing stands for here, and why."""


def name_here(key: str) -> str | None:
    """Return the key, group or flag that stands here for a key of theirs; None if it is none of those."""
    last = key.rpartition(".")[2]
    begins = (here for start, here in VERL_BEGINNINGS.items() if last.startswith(start))
    tables = (WEBGYM, POLYRL, VERL, TRL, PRIME_RL)
    return next((table[key] for table in tables if key in table), None) or next(begins, None)


def why_none(key: str) -> str | None:
    """Return why nothing stands here for a key of theirs; None if it is none of those."""
    return NOT_NEEDED.get(key.rpartition(".")[2])
