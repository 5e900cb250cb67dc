"""The facts of a plan that `run.sh` needs, by name.

Upper-case names are variables to export to every process of the run; lower-case ones are for the script.
"""

import math
from collections.abc import Mapping

from rl_agent.cluster.shared_fs.run_lock import lock_path
from rl_agent.config.plan import Plan
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.engine.sharing import stays_up
from rl_agent.http.tokens import secret_variables
from rl_agent.plan.environment import shared_environment
from rl_agent.system.processes import pid_space
from rl_agent.weights.settings import store_folder


def facts(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables and facts of a written plan.

    `groups` comes last: once `run.sh` has it, its end makes use of the others.
    """
    run_dir = plan.paths.run_dir(plan.run_id)
    return shared_environment(plan.config, environ).variables | {
        "RL_AGENT_RUN_ID": plan.run_id,
        "RUN_DIR": str(run_dir),
        "attempt": str(plan.attempt),
        "rl_phase": plan.command.rl_phase,
        "is_master": str(int(plan.is_master)),
        "debug_mode": str(int(plan.command.debug_mode)),
        "is_pooled": str(int(plan.config.is_pooled)),
        "engine_verb": "join-pool" if plan.config.is_pooled else "serve",
        "starts_engine": str(int(plan.config.pool.local_engine or not plan.config.is_pooled)),
        "num_gpus": str(_gpus_in_use(plan)),
        "engine_stays_up": str(int(stays_up(plan) or plan.config.is_streaming)),
        "is_streaming": str(int(plan.config.is_streaming and plan.command.rl_phase == "both")),
        "ends_with_evaluation": str(int(plan.ends_with_evaluation)),
        "takes_turns": str(int(plan.takes_turns)),
        "trainer_restarts": str(plan.config.grpo.max_restarts if plan.config.is_streaming else 0),
        "weights_store": str(store_folder(plan)) if plan.config.loads_weights else "",
        "start_attempts": str(plan.config.engine.start_attempts),
        "visibility_s": str(math.ceil(plan.config.cluster.lease_s)),
        "train_timeout_s": str(math.ceil(plan.config.trainer.timeout_s)),
        "logs": str(plan.logs_dir),
        "timeline": str(plan.paths.timeline if plan.is_master else plan.logs_dir / "timeline.jsonl"),
        "metrics": str(plan.paths.metrics),
        "page": str(plan.config.page.port),
        "page_without": " ".join(sorted(_secrets_of_others(plan, environ))),
        "log_path": str(plan.config.log_path),
        "lock": str(lock_path(plan.config.log_path)) if plan.is_master else "",
        "groups": str(plan.groups_dir(pid_space())),
    }


def _secrets_of_others(plan: Plan, environ: Mapping[str, str]) -> frozenset[str]:
    """Return the variables with keys that the page has no use for; it asks the manager with a token."""
    config = plan.config
    named = {config.openai_config.openai_api_key_env_var, config.wandb.wandb_key_env_var, "WANDB_API_KEY"}
    named.add(config.engine.api_key_env_var)
    return (secret_variables(environ) | named) - {config.pool.token_env_var}


def _gpus_in_use(plan: Plan) -> int:
    """GPUs whose memory the run waits for; none where all is on the CPU, or the trainer keeps some of it."""
    config = plan.config
    trains_on_cpu = isinstance(config.trainer, TrainerConfig) and config.trainer.use_cpu is True
    is_on_cpu = config.engine.device == "cpu" and trains_on_cpu
    is_kept = config.shares_gpus and plan.command.rl_phase == "both"
    return 0 if is_on_cpu or is_kept else plan.hardware.num_gpus
