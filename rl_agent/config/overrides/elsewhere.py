"""Keys of WebGym and of PolyRL (verl), and what they are here: for people who bring their commands along.

`docs/how-to/come-from-webgym-or-polyrl.md` has the whole of both, with what is deliberately different.
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
    "actor_rollout_ref.rollout.n": "rollout.group_size",
    "actor_rollout_ref.rollout.temperature": "policy_config.temperature",
    "actor_rollout_ref.rollout.top_p": "policy_config.top_p",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "engine.gpu_memory_utilization",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "engine.tensor_parallel_size",
    "actor_rollout_ref.rollout.rollout_manager.port": "pool.port",
    "actor_rollout_ref.rollout.rollout_manager.endpoint": "pool.host",
    "actor_rollout_ref.actor.optim.lr": "trainer.optimizer.learning_rate",
    "actor_rollout_ref.actor.optim.weight_decay": "trainer.optimizer.weight_decay",
    "actor_rollout_ref.actor.grad_clip": "trainer.optimizer.max_grad_norm",
    "actor_rollout_ref.actor.kl_loss_coef": "trainer.loss.kl_coefficient",
    "actor_rollout_ref.actor.kl_loss_type": "trainer.loss.kl_estimator",
    "actor_rollout_ref.actor.clip_ratio_low": "trainer.loss.clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "trainer.loss.clip_high",
    "algorithm.adv_estimator": "trainer.loss.advantage",
    "data.train_files": "env_config.train_tasks",
    "data.val_files": "env_config.test_tasks",
    "data.train_batch_size": "env_config.train_tasks_rollout_size",
    "data.max_response_length": "policy_config.max_new_tokens",
    "trainer.experiment_name": "run_name",
    "trainer.project_name": "wandb.project",
    "trainer.n_gpus_per_node": "trainer.nproc_per_node",
}
"""A key of verl's Hydra tree, and the key here."""

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
}
"""The last part of a key of theirs that nothing stands for here, and why."""


def name_here(key: str) -> str | None:
    """Return the key that stands here for one of WebGym or verl; None if it is of neither."""
    last = key.rpartition(".")[2]
    begins = (here for start, here in VERL_BEGINNINGS.items() if last.startswith(start))
    return WEBGYM.get(key) or VERL.get(key) or next(begins, None)


def why_none(key: str) -> str | None:
    """Return why nothing stands here for a key of theirs; None if it is none of those."""
    return NOT_NEEDED.get(key.rpartition(".")[2])
