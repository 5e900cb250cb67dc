"""The configuration: Hydra composes it from `configs/`, pydantic checks it, `Plan` carries it.

Defaults live in the YAML files only; the models below state names, types and ranges. `cli.plan` is the
one place that composes; every later command reads the resulting `plan.json`.
"""

import secrets
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rl_agent.config.sections.base import (
    CallersPath,
    Count,
    FreeForm,
    NotNegative,
    Port,
    Positive,
    SampleSize,
    Seconds,
    Section,
    Seed,
    Share,
)
from rl_agent.config.sections.context import ContextConfig
from rl_agent.config.sections.env import EnvConfig
from rl_agent.config.sections.grpo import GrpoConfig
from rl_agent.config.sections.judge import JudgeConfig
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.config.sections.pool_scale import PoolScaleConfig
from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import ConfigError
from rl_agent.http.tokens import is_loopback
from rl_agent.paths import RunPaths
from rl_agent.system.files import write_whole
from rl_agent.types import Split


def _off(value: Any) -> Any:
    """Return the word that was meant: YAML reads `off` as false."""
    return "off" if value is False else value


class ModelConfig(Section):
    model_type: Literal["qwen3-instruct", "qwen3-think", "qwen3-text"]
    base_model: str
    template: str | None
    reasoning_parser: str | None
    trust_remote_code: bool
    chat_template_kwargs: FreeForm


class PolicyConfig(Section):
    temperature: NotNegative
    test_temperature: NotNegative | None
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: SampleSize
    min_p: Share
    max_new_tokens: Positive
    system_prompt: str | None
    action_format: Literal["text", "tool_calls"]

    @property
    def has_tool_calls(self) -> bool:
        """Return whether the agent acts by calls of functions in its model's own format."""
        return self.action_format == "tool_calls"

    def temperature_of(self, split: Split) -> float:
        if split == "test" and self.test_temperature is not None:
            return self.test_temperature
        return self.temperature


class EngineConfig(Section):
    device: Literal["gpu", "cpu"]
    url: str | None
    host: str
    port: Port
    api_key_env_var: str
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
    max_num_seqs: Positive
    max_model_len: Positive
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    tensor_parallel_size: Positive
    data_parallel_size: Positive | None
    limit_mm_per_prompt: dict[str, Count]
    enforce_eager: bool
    extra_args: FreeForm
    extra_env: dict[str, str]
    start_timeout_s: Seconds
    start_attempts: Positive
    memory_clear_mib: Positive

    @property
    def base_url(self) -> str:
        """Root URL without a trailing slash; routes such as `/v1/models` are appended to it."""
        if self.url is not None:
            return self.url.rstrip("/")
        is_any = self.host in ("0.0.0.0", "::")  # noqa: S104 - compares, does not bind
        host = "127.0.0.1" if is_any else self.host
        return f"http://{host}:{self.port}"


class RolloutConfig(Section):
    group_size: Positive
    reward: Literal["rule", "judge"]
    reward_weights: dict[str, Annotated[float, Field(allow_inf_nan=False)]]
    """Weights of named rewards of environments; one that is not named here has the weight 1."""
    max_vllm_sessions: Positive
    min_vllm_sessions: Positive
    completion_threshold: Annotated[float, Field(gt=0, le=1)]
    completion_grace_period: NotNegative
    request_timeout_s: Seconds
    step_timeout_s: Seconds
    episode_timeout_s: Seconds
    judge_timeout_s: Seconds
    request_retries: Count
    fsync: bool


class ClusterConfig(Section):
    heartbeat_s: Seconds
    lease_s: Seconds
    start_timeout_s: Seconds
    phase_timeout_s: Seconds
    chunk_tasks: Positive
    on_node_loss: Literal["continue", "wait", "stop"]
    replacement_timeout_s: Seconds
    interface: str | None
    master_port: Port | None

    @field_validator("lease_s")
    @classmethod
    def _outlasts_heartbeats(cls, lease_s: float, others: ValidationInfo) -> float:
        shortest = 5 * others.data.get("heartbeat_s", 0.0)
        if lease_s < shortest:
            reason = f"at least five times cluster.heartbeat_s, {shortest:g}"
            raise PydanticCustomError("short_lease", "{reason}", {"reason": reason})
        return lease_s


class PoolConfig(Section):
    """The manager of a rollout pool: of a run, or of one that stands alone."""

    token_env_var: ClassVar[str] = "RL_AGENT_POOL_TOKEN"  # noqa: S105 - a name
    """Environment variable with the token, where there is no file; workers and `pool scale` read the same."""
    kind: Literal["none", "elastic"]
    local_engine: bool
    host: str
    port: Annotated[int, Field(ge=0, le=65535)]
    token_file: CallersPath | None
    admin_token_file: CallersPath | None
    tls_certificate: CallersPath | None
    tls_key: CallersPath | None
    tls_ca: CallersPath | None
    allowed_sender_ips: tuple[str, ...]
    allowed_engine_networks: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    login_timeout_s: Seconds
    max_connections: Positive
    journal: CallersPath | None
    journal_interval_s: Seconds
    model: str | None
    weight_version: Count
    lease_s: Seconds
    heartbeat_s: Seconds
    probe_interval_s: Seconds
    start_timeout_s: Seconds
    stall_timeout_s: Seconds
    stream_interval: Positive
    stream_interval_s: Seconds
    request_timeout_s: Seconds
    engine_deaths_limit: Positive
    max_broken_attempts: Positive
    policy: str
    module_folders: tuple[CallersPath, ...]
    rebalance_interval_s: Seconds
    rebalance_gain_s: NotNegative
    weights_timeout_s: Seconds
    default_capacity: Positive
    max_engines: Positive
    max_open_requests: Positive
    on_demand_price_per_hour: NotNegative
    scale: PoolScaleConfig


class PageConfig(Section):
    """The address at which a run shows its page, and who may look."""

    port: Annotated[Literal["auto", "off"] | Port, BeforeValidator(_off)]
    host: str
    token_file: CallersPath | None
    tls_certificate: CallersPath | None
    tls_key: CallersPath | None
    allowed_hosts: tuple[str, ...]

    @model_validator(mode="after")
    def _is_for_its_viewers_alone(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise PydanticCustomError(
                "half_tls", "tls_certificate and tls_key go together: give both or neither"
            )
        if not is_loopback(self.host) and (self.token_file is None or self.tls_certificate is None):
            reason = (
                f"host {self.host} can be reached by others: give token_file, tls_certificate and tls_key;"
                " or leave it on 127.0.0.1, and look through ssh -L"
            )
            raise PydanticCustomError("open_page", "{reason}", {"reason": reason})
        return self


class WandbConfig(Section):
    project: str
    entity: str | None
    mode: Literal["online", "offline", "disabled"] | None
    wandb_key_env_var: str


class Config(Section):
    data_path: Path
    log_path: Path
    run_name: str
    seed: Seed
    model: Annotated[ModelConfig, Field(alias="model_config")]
    policy_config: PolicyConfig
    context: ContextConfig
    engine: EngineConfig
    env_config: EnvConfig
    rollout: RolloutConfig
    openai_config: JudgeConfig
    trainer: Annotated[TrainerConfig | GrpoConfig, Field(discriminator="kind")]
    weights: WeightsConfig
    cluster: ClusterConfig
    pool: PoolConfig
    page: PageConfig
    wandb: WandbConfig

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_folder(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("run_name", "") is None:
            return values | {"run_name": Path(values["log_path"]).name}
        return values

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.log_path)

    @property
    def is_pooled(self) -> bool:
        """Return whether the run's engines join a manager."""
        return self.pool.kind == "elastic"

    @property
    def is_streaming(self) -> bool:
        """Return whether training goes on while the rollout runs."""
        return isinstance(self.trainer, GrpoConfig)

    @property
    def publishes_adapters(self) -> bool:
        """Return whether training gives engines an adapter alone, beside the base model."""
        return isinstance(self.trainer, GrpoConfig) and self.trainer.lora.is_published_alone

    @property
    def num_gen_batches(self) -> int:
        """Times its own size that a training iteration may sample; 1: no group takes another's place."""
        return self.trainer.num_gen_batches if isinstance(self.trainer, GrpoConfig) else 1

    @property
    def takes_turns(self) -> bool:
        """Return whether a streaming trainer and its node's engine would have the same devices in turns."""
        return isinstance(self.trainer, GrpoConfig) and self.trainer.takes_turns

    @property
    def shares_gpus(self) -> bool:
        """Return whether a streaming trainer and its node's engine have the same devices, in turns or not."""
        return isinstance(self.trainer, GrpoConfig) and self.trainer.placement != "disaggregated"

    @property
    def keeps_version(self) -> bool:
        """Return whether all tokens of an episode are to be of one weight version."""
        return isinstance(self.trainer, GrpoConfig) and not self.trainer.batch.allow_mixed_versions

    @property
    def loads_weights(self) -> bool:
        """Return whether engines can be given new weights while they run."""
        return self.weights.is_inplace or self.is_pooled

    @property
    def llamafactory(self) -> TrainerConfig:
        """Return the settings of an update phase. Raises ConfigError where another kind trains."""
        if not isinstance(self.trainer, TrainerConfig):
            raise ConfigError(f"trainer.kind={self.trainer.kind}: an update phase needs trainer=llamafactory")
        return self.trainer

    @property
    def grpo(self) -> GrpoConfig:
        """Return the settings of a streaming trainer. Raises ConfigError where another kind trains."""
        if not isinstance(self.trainer, GrpoConfig):
            raise ConfigError(f"trainer.kind={self.trainer.kind}: streaming needs trainer=grpo")
        return self.trainer


class Hardware(Section):
    """The hardware that the plan found on this machine."""

    num_gpus: int
    cores: int
    memory_gib: float
    gpu_memory_gib: float = 0.0
    """Memory of the smallest visible GPU; 0: none, or nobody knows."""


class Command(Section):
    """The flags that the user gave to `run.sh`."""

    rl_phase: Literal["rollout", "update", "both"]
    eval_interval: Positive | None
    rollout_split: Literal["train-only", "eval-only"] | None
    debug_mode: bool
    resume: bool
    max_iterations: Positive | None
    final_eval: bool = False
    """Evaluate once more after the last update of `both`."""
    num_nodes: Positive
    rank: Count
    rank_weights: tuple[Positive, ...]
    join: bool = False
    overrides: tuple[str, ...]


def new_incarnation() -> str:
    return secrets.token_hex(8)


class Plan(Section):
    """Everything a run needs to know, resolved once and written to `plan.json`."""

    run_id: str
    attempt: Positive
    """Counts the starts of a run, resumes included, from 1."""
    first_iteration: Positive
    """Iteration the run began with; `max_iterations` counts from here, also after a resume."""
    incarnation: str = Field(default_factory=new_incarnation)
    """Names this start on this node."""
    command: Command
    hardware: Hardware
    config: Config

    @property
    def paths(self) -> RunPaths:
        return self.config.paths

    @property
    def last_iteration(self) -> int | None:
        """Return the number of the last iteration; None where the run goes on until it is stopped."""
        limit = self.command.max_iterations
        return None if limit is None else self.first_iteration + limit - 1

    @property
    def ends_with_evaluation(self) -> bool:
        """Return whether an evaluation follows the last update, in an iteration of its own."""
        return self.command.final_eval and self.command.max_iterations is not None

    @property
    def takes_turns(self) -> bool:
        """Return whether this run trains on its engine's devices, in turns; a rollout alone has no turns."""
        return self.config.takes_turns and self.command.rl_phase == "both"

    @property
    def node(self) -> str:
        """Return the name of this node in the run, by which its groups, logs and plans go."""
        return f"join-{self.incarnation}" if self.command.join else f"rank-{self.command.rank}"

    @property
    def is_master(self) -> bool:
        return self.command.rank == 0 and not self.command.join

    def tasks_file(self, split: Split) -> Path:
        """Return the task file that all nodes of the run read, from its start to its end."""
        return self.paths.tasks(self.run_id, split)

    @property
    def logs_dir(self) -> Path:
        """Return the folder of this node's logs; those of rank 0 lie at the top, where one looks first."""
        folder = self.paths.run_dir(self.run_id) / "logs"
        return folder if self.is_master else folder / self.node

    def groups_dir(self, pid_space: str) -> Path:
        """Return the folder in which `start_group` records this node's process groups."""
        return self.paths.run_dir(self.run_id) / "groups" / pid_space / self.node

    @classmethod
    def read(cls, path: Path) -> "Plan":
        return cls.model_validate_json(path.read_bytes())

    def write(self, path: Path) -> None:
        write_whole(path, self.model_dump_json(indent=2, by_alias=True) + "\n")
