"""Makes what a collector needs of a configuration: the policy that acts, and how episodes run.

A run's rank and the library make the same parts here; none needs a plan, or a member of a cluster.
"""

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.chat.context.window import ContextLimits
from rl_agent.chat.text_chat import TextChat
from rl_agent.chat.tool_formats import ToolFormat
from rl_agent.config.plan import Config
from rl_agent.engine.client import EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.env.remote.environments import Environments
from rl_agent.rollout.collector.collect import CollectSettings
from rl_agent.rollout.collector.episode import EpisodeSetup
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import Policy
from rl_agent.rollout.collector.stop_rule import StopRule
from rl_agent.types import Split


def policy_of(
    config: Config,
    split: Split,
    *,
    engine: EngineClient,
    chat: ChatTokenizer | TextChat,
    gate: EngineGate,
    lengths: ResponseLengths | None,
    tool_format: ToolFormat | None,
    min_weight_version: int = 0,
) -> Policy:
    """Return the model that acts, as the configuration samples it; `lengths` only where a pool is told."""
    policy = config.policy_config
    sampling = Sampling(
        temperature=policy.temperature_of(split),
        top_p=policy.top_p,
        top_k=policy.top_k,
        min_p=policy.min_p,
        max_tokens=policy.max_new_tokens,
        seed=config.seed,
        stop_token_ids=chat.stop_token_ids,
        min_weight_version=min_weight_version,
        vocab_size=chat.vocab_size,
        timeout_s=0.0 if lengths is None else config.rollout.request_timeout_s,
    )
    return Policy(
        engine=engine,
        gate=gate,
        chat=chat,
        sampling=sampling,
        system_prompt=policy.system_prompt,
        chat_template_kwargs=config.model.chat_template_kwargs,
        lengths=lengths,
        keeps_version=config.keeps_version,
        limits=context_limits(config, engine.served.max_model_len),
        image_tokens=ImageTokens() if chat.folder is None else ImageTokens.load(chat.folder),
        tool_format=tool_format,
    )


def context_limits(config: Config, max_model_len: int) -> ContextLimits:
    """Return what the group `context` means for an engine that takes so many tokens."""
    settings = config.context
    room = settings.room_for_response(max_model_len, config.policy_config.max_new_tokens)
    values = settings.model_dump(exclude={"response_tokens"})
    return ContextLimits(**values, max_model_len=max_model_len, response_tokens=room)


def episode_setup(config: Config, split: Split, policy: Policy, environments: Environments) -> EpisodeSetup:
    """Return what the episodes of an iteration share, before a run adds where it records them."""
    rollout = config.rollout
    return EpisodeSetup(
        split=split,
        iteration=1,
        model=policy.engine.served.root,
        policy=policy,
        create_environment=environments.create,
        step_timeout_s=rollout.step_timeout_s,
        episode_timeout_s=rollout.episode_timeout_s,
        tools_of=environments.classes.tools_of,
        scorer_of=environments.classes.scorer_of,
        reward_weights=rollout.reward_weights,
        attempts=config.env_config.attempts,
    )


def collect_settings(config: Config, split: Split) -> CollectSettings:
    """Return how many episodes run at once, and when the last ones are given up."""
    rollout = config.rollout
    # An evaluation without its slowest episodes would measure another set of tasks each time.
    threshold = rollout.completion_threshold if split == "train" else 1.0
    return CollectSettings(
        server_size=config.env_config.server_size,
        stop_rule=StopRule(threshold, rollout.completion_grace_period),
        judge_timeout_s=rollout.judge_timeout_s,
    )
