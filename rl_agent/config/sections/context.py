"""The group `context`: what of a conversation a model is shown."""

from typing import Annotated, Literal

from pydantic import Field

from rl_agent.config.sections.base import Count, Positive, Section


class _AnyContext(Section):
    response_tokens: Positive | None

    def room_for_response(self, max_model_len: int, max_new_tokens: int) -> int:
        """Return how many tokens a prompt leaves for its response."""
        return self.response_tokens or max(1, min(max_new_tokens, max_model_len // 8))


class EverythingConfig(_AnyContext):
    kind: Literal["everything"]


class WindowConfig(_AnyContext):
    kind: Literal["window"]
    max_images: Positive | None
    max_rounds: Count | None
    max_lines: Count


class SummaryConfig(_AnyContext):
    kind: Literal["summary"]
    max_images: Positive | None
    max_rounds: Count | None
    max_lines: Count
    keep_rounds: Count
    summary_tokens: Positive
    summary_prompt: str


ContextConfig = Annotated[EverythingConfig | WindowConfig | SummaryConfig, Field(discriminator="kind")]
