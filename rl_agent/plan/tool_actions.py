"""Checks that the base model's chat template has tools, where the agent acts by tool calls."""

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.agent.tool_template import tool_format_of
from rl_agent.config import Command, Config
from rl_agent.plan.hub import FoundModel


def check_tool_calls(config: Config, command: Command, model: FoundModel) -> tuple[str, ...]:
    """Return what a person should know. Raises ConfigError for a model whose calls cannot be read."""
    if not config.policy_config.has_tool_calls or command.rl_phase == "update":
        return ()
    name = config.model.base_model
    if model.folder is None:
        unread = "whether its chat template has tools is seen after the download"
        return (f"model_config.base_model={name}: {unread}",)
    written_as = tool_format_of(ChatTokenizer.load(str(model.folder), config.model.chat_template_kwargs))
    return (f"policy_config.action_format=tool_calls: {name} writes calls as {written_as.name}",)
