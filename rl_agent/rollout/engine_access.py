"""Connects a rollout to its engine: the node's own or the run's pool, if it serves the wanted model."""

import os
from collections.abc import Sequence
from itertools import zip_longest

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.config.plan import Config, Plan
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.connections import EngineConnections
from rl_agent.engine.model import ResolvedModel
from rl_agent.engine.packed import ROUTE_KEEPALIVE_S
from rl_agent.engine.served import version_served
from rl_agent.engine.wire import ServedModel
from rl_agent.errors import ConfigError, MachineError, RetryLater
from rl_agent.pool import run_pool


def engine_connections(plan: Plan) -> EngineConnections:
    """Open connections that outlive a rollout: hundreds are as long in the making as short answers."""
    if plan.config.is_pooled:
        return EngineConnections(
            run_pool.tls_ca(plan), ROUTE_KEEPALIVE_S
        )  # the manager drops them after 75 s
    return EngineConnections(None)


def engine_client(plan: Plan, model: ResolvedModel, connections: EngineConnections | None) -> EngineClient:
    """Make the client of the node's engine, or of the pool, which is used like one."""
    config = plan.config
    if config.is_pooled:
        url, key, tls_ca = run_pool.manager_url(plan), run_pool.token(plan, os.environ), run_pool.tls_ca(plan)
    else:
        url, key, tls_ca = config.engine.base_url, os.environ.get(config.engine.api_key_env_var), None
    settings = ClientSettings(
        request_timeout_s=config.rollout.request_timeout_s,
        retries=config.rollout.request_retries,
        api_key=key,
        tls_ca=tls_ca,
        run=plan.run_id,
    )
    return EngineClient(
        url, settings, identify=lambda served: identify(served, config, model), connections=connections
    )


def identify(served: ServedModel, config: Config, model: ResolvedModel) -> int:
    """Return the weight version of the served model. Raises ConfigError if this run wants another.

    The run's own pool says its version itself, which may be ahead of the newest folder.
    """
    if config.is_pooled and served.weight_version is not None:
        if served.weight_version < model.weight_version:
            raise RetryLater(
                f"the pool is at weight version {served.weight_version}, not at {model.weight_version}"
            )
        return served.weight_version
    version = version_served(served.root, config, model)
    if version is None or version != model.weight_version:
        raise MachineError(
            f"the engine at {config.engine.base_url} serves {served.root}, this run wants {model.path};"
            " stop that server, or set engine.port or engine.url"
        )
    return version


async def check_tokens(engine: EngineClient, chat: ChatTokenizer, config: Config, prompt: str) -> None:
    """Compare the tokens of a task's prompt with those that the node's own engine makes of it.

    Raises ConfigError if they differ by its tokenizer or by its chat template. A server that tells no tokens
    passes. Equal tokens of messages are enough: Mistral's own tokenizer reads no control token in a text.
    """
    system, text = config.policy_config.system_prompt, chat.plain(prompt)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    token_ids = chat.encode_messages(messages)
    if config.is_pooled or token_ids is None:
        return
    rendered = chat.render(messages, (), add_generation_prompt=True)
    if text.strip() not in rendered:  # a template for images may show no mere text
        return
    ours, kwargs = tuple(token_ids), config.model.chat_template_kwargs
    question = {"messages": messages, "add_generation_prompt": True, "chat_template_kwargs": kwargs}
    if (of_chat := await engine.tokenize(question)) == ours:
        return
    of_text = await engine.tokenize({"prompt": rendered, "add_special_tokens": False})
    for tokens, what, remedy in (
        (of_text, "reads a text otherwise than tokenizer.json", "save the tokenizer anew with transformers"),
        (
            None if chat.shows_time else of_chat,
            "renders messages otherwise than the model's chat template",
            f"give the engine that template and model_config.chat_template_kwargs={kwargs}",
        ),
    ):
        if tokens is not None and tokens != ours:
            raise ConfigError(
                f"{engine.served.root}: the engine at {config.engine.base_url} {what}:"
                f" {_first_difference(chat, tokens, ours)}; {remedy}"
            )


def _first_difference(chat: ChatTokenizer, theirs: Sequence[int], ours: Sequence[int]) -> str:
    pairs = enumerate(zip_longest(theirs, ours))
    at, different = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    texts = ["" if token is None else chat.decode([token]) for token in different]
    there, here = (
        f"{token} ({text!r})" if text else token for token, text in zip(different, texts, strict=True)
    )
    return f"token {at} of the first prompt is {there} there and {here} here"
