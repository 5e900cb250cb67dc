"""A tokenizer, a template and an engine for pictures, without a model: one token for each 32 x 32 pixels."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from PIL import Image
from tokenizers import AddedToken

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.chat.context.messages import countable
from rl_agent.errors import PromptTooLong
from rl_agent.types import Observation
from tests.support.tiny_chat import END_OF_TEXT, TURN_END, tiny_tokenizer
from tests.unit.rollout.episodes import FakeEngine

VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
IMAGE_TOKEN = 260
"""Number of `<|image_pad|>`, behind the 259 tokens of `tiny_tokenizer` and `<|vision_start|>`."""
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}"
    "{%- set content = message.content.split('</think>')[-1] if not loop.last else message.content -%}"
    "{{- content -}}{%- else -%}"
    "{%- for part in message.content -%}"
    "{{- part.text if part.type == 'text' else '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- endfor -%}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""A template like Qwen3's: thoughts of earlier turns are stripped."""
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 2**24},
}


def visual_tokenizer():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in VISION])
    return tokenizer


def visual_chat(prompt: str = "<|im_start|>assistant\n") -> ChatTokenizer:
    """Return a tokenizer whose prompts end so."""
    template = TEMPLATE.replace("'<|im_start|>assistant\\n'", repr(prompt))
    return ChatTokenizer(visual_tokenizer(), template, {2: TURN_END, 0: END_OF_TEXT}, {})


def known_images() -> ImageTokens:
    return ImageTokens(PROCESSOR, IMAGE_TOKEN)


class VisualEngine(FakeEngine):
    """Makes tokens of messages as a server does, and refuses what is longer than `max_model_len`."""

    def __init__(self, say="4", *, max_model_len=100_000, chat=None, image_token=IMAGE_TOKEN):
        super().__init__(say)
        self.max_model_len = max_model_len
        self.chat = chat or visual_chat()
        self.image_token = image_token
        self.refused = 0
        self.shown = []

    async def generate_chat(self, messages, sampling, *, request_id, chat_template_kwargs, decode, tools=()):
        self.samplings.append(sampling)
        pieces = [self.pieces(path_of(part)) for part in image_parts(messages)]
        prompt = []
        for token in self.chat.encode_messages(countable(messages)):
            prompt += [token] * (pieces.pop(0) if token == self.image_token else 1)
        if len(prompt) + 1 > self.max_model_len:
            self.refused += 1
            raise PromptTooLong(f"{len(prompt)} tokens")
        assert len(prompt) + sampling.max_tokens <= self.max_model_len
        self.messages.append(list(messages))
        self.contexts.append(prompt)
        return tuple(prompt), self.generation()

    async def generate_with_images(self, prompt_token_ids, images, sampling, *, request_id, decode):
        """Answer as a server that takes images beside tokens."""
        pieces = [self.pieces(image.path) for image in images]
        prompt = []
        for token in prompt_token_ids:
            prompt += [token] * (pieces.pop(0) if token == self.image_token else 1)
        assert not pieces and len(prompt) + sampling.max_tokens <= self.max_model_len
        self.samplings.append(sampling)
        self.contexts.append(prompt)
        self.shown.append([image.digest for image in images])
        return tuple(prompt), self.generation()

    def pieces(self, path):
        with Image.open(path) as image:
            return (image.width // 32) * (image.height // 32)


def image_parts(messages):
    return [
        part
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def path_of(part):
    return unquote(urlsplit(part["image_url"]["url"]).path)


def screenshot(folder: Path, number: int, *, width: int = 64, height: int = 64) -> str:
    """A file of an environment; each number has its own pixels."""
    path = folder / f"screen-{number}.png"
    Image.new("RGB", (width, height), (number % 256, number // 256, 7)).save(path)
    return str(path)


def look(folder: Path, number: int, **size) -> Observation:
    return Observation(f"page {number}", (screenshot(folder, number, **size),))
