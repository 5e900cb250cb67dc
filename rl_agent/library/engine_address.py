"""Connects to an engine, a pool or a hosted model by its address, and finds out whether it tells tokens."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.text_chat import TextChat
from rl_agent.config.plan import Config
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.text_client import TextEngineClient
from rl_agent.errors import ConfigError, EngineError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """An OpenAI-compatible server: vLLM, a pool's manager, or any other."""

    url: str
    """The address of the server, or of its API, `/v1`."""
    api_key: str | None
    """The key of a server that wants one; of a pool its token."""
    tls_ca: Path | None
    model: str | None
    """Folder or hub name of the tokenizer; of a server that tells no tokens, the model to ask for."""
    tokens: bool | None
    """False does without token ids, True insists on them; None takes them where the server tells them."""

    async def connect(
        self, config: Config, stack: AsyncExitStack
    ) -> tuple[EngineClient, ChatTokenizer | TextChat]:
        """Return an open client, and what makes prompts for it. Raises RetryLater if nobody answers there.

        Raises ConfigError where the tokenizer is not here, EngineError where tokens are wanted and not told.
        """
        settings = ClientSettings(
            request_timeout_s=config.rollout.request_timeout_s,
            retries=config.rollout.request_retries,
            api_key=self.api_key,
            tls_ca=self.tls_ca,
            inlines_images=True,
        )
        if self.tokens is not False:
            base = self.url.rstrip("/").removesuffix("/v1")
            client = EngineClient(base, settings, identify=lambda served: served.weight_version or 0)
            try:
                await stack.enter_async_context(client)
            except EngineError:
                if self.tokens:
                    raise
            else:
                return client, await asyncio.to_thread(self._tokenizer, client.served.root, config)
        text_client = TextEngineClient(self.url, settings, model=self.model)
        await stack.enter_async_context(text_client)
        log.warning(
            "%s: its responses have no tokens and logprobs: good to evaluate, and to clone as text;"
            " trainer=grpo and trainer=llamafactory cannot use them",
            self.url,
        )
        return text_client, TextChat()

    def _tokenizer(self, root: str, config: Config) -> ChatTokenizer:
        try:
            return ChatTokenizer.load(self.model or root, config.model.chat_template_kwargs)
        except (ConfigError, OSError, ValueError) as error:
            raise ConfigError(
                f"{self.model or root}: its tokenizer cannot be read ({error}); give model=FOLDER, or a"
                " name on the Hugging Face hub, or tokens=False to collect text alone"
            ) from error
