"""Measures the first prompts of a few episodes, with tools and images, as the rollout would build them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.chat.context.window import ContextView
from rl_agent.chat.tool_formats import Schema
from rl_agent.chat.tool_template import check_images_of_tools
from rl_agent.config.plan import Config
from rl_agent.errors import ConfigError, TaskError
from rl_agent.plan.hub import FoundModel
from rl_agent.rollout.collector.prompts import PromptBuilder
from rl_agent.types import Observation, Task


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """The size of a prompt, as far as it is known."""

    task_id: str
    tokens: int
    is_exact: bool
    """False where only the server knows how many tokens an image has; it is counted as one, or as none."""
    tokens_of_tools: int = 0


class FirstPrompts:
    """The prompts that a run's model would be shown first."""

    def __init__(self, config: Config, model: FoundModel) -> None:
        """The model has a folder. Raises ConfigError for a damaged file of it."""
        self._config = config
        self._chat = ChatTokenizer.load(str(model.folder), config.model.chat_template_kwargs)
        assert model.folder is not None
        self._image_tokens = ImageTokens.load(model.folder)

    async def measure(self, task: Task, observation: Observation, tools: Sequence[Schema]) -> FirstPrompt:
        """Build the prompt of a task. Raises ConfigError if the chat template refuses it.

        The files of the observation's images must be there.
        """
        name = self._config.model.base_model
        try:
            tokens, is_exact = await self._size(task, observation, tools)
            without = (await self._size(task, observation, ()))[0] if tools else tokens
        except ConfigError as error:
            raise ConfigError(
                f"model_config.base_model={name}: the first prompt of task {task.task_id} cannot be written:"
                f" {error}"
            ) from error
        if tools and observation.images:
            check_images_of_tools(self._chat, self._config.policy_config.system_prompt)
        return FirstPrompt(task.task_id, tokens, is_exact, tokens - without)

    async def _size(self, task: Task, observation: Observation, tools: Sequence[Schema]) -> tuple[int, bool]:
        chat, system = self._chat, self._config.policy_config.system_prompt
        builder = PromptBuilder(chat, system, self._image_tokens, task.task_id, tools)
        prompt, _ = await builder.fitting([ContextView()], observation, None)
        if prompt.length is not None:
            return prompt.length, True
        # A template that takes text alone: there a server marks images by itself.
        text = replace(observation, images=())
        return len(prompt.token_ids or chat.start(system, text, tools)), False


def check_room(prompts: Iterable[FirstPrompt], limit: int) -> None:
    """Refuse a context in which not one of these prompts leaves room for a response."""
    sorted_prompts = sorted(prompts, key=lambda prompt: prompt.tokens)
    if not sorted_prompts or sorted_prompts[0].tokens < limit:
        return
    least = sorted_prompts[0]
    of_tools = f" ({least.tokens_of_tools} of them for its tools)" if least.tokens_of_tools else ""
    raise TaskError(
        f"engine.max_model_len={limit}: the first prompt of task {least.task_id} has"
        f" {'' if least.is_exact else 'at least '}{least.tokens} tokens{of_tools} and leaves no room for a"
        f" response, and the other {len(sorted_prompts) - 1} tasks that were tried have no shorter ones",
        least.task_id,
    )
