"""Screenshots, models that see, and requests that show them: what the benchmarks of images share."""

import hashlib
import random
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.engine.client import EngineClient
from rl_agent.engine.packed import PromptImage
from rl_agent.engine.wire import Sampling
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.collector.prompts import image_part

sys.path.insert(0, str(PROJECT_ROOT / "data"))

SIZE = (1000, 800)
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "text": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
        | {"num_attention_heads": 4, "num_key_value_heads": 2},
        "vision": {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2}
        | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        "max_pixels": 64 * 64,
    },
    "2b": {
        "text": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
        | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]}}
        | {"tie_word_embeddings": True},
        "vision": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16}
        | {"num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]},
        "max_pixels": 16 * 1024 * 1024,
    },
    "8b": {
        "text": {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]}}
        | {"tie_word_embeddings": False},
        "vision": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
        | {"num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]},
        "max_pixels": 16 * 1024 * 1024,
    },
    "qwen3.5-2b": {
        "kind": "qwen3_5",
        "text": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24}
        | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248_320}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10]}}
        | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6, "mamba_ssm_dtype": "float32"}
        | {"linear_num_key_heads": 16, "linear_num_value_heads": 16, "tie_word_embeddings": True},
        "vision": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16}
        | {"num_position_embeddings": 2304},
        "max_pixels": 16 * 1024 * 1024,
    },
}
"""The processor of Qwen3-VL. With the tiny one an image becomes four tokens at most."""
for _large in ("2b", "8b", "qwen3.5-2b"):
    SHAPES[_large]["text"]["rope_parameters"]["mrope_interleaved"] = True


def make_processor(folder: Path, shape: str, longest: int) -> Any:
    """Write a new folder with all of a model but its weights; returns its configuration."""
    from tiny_tokenizer import train_tokenizer
    from tiny_vision import add_media, save_processor, vision_config

    numbers = SHAPES[shape]
    folder.mkdir()
    tokenizer = add_media(train_tokenizer(["Reach the goal.", "left", "right", "up", "down"] * 20))
    parts = {"text": numbers["text"], "vision": numbers["vision"], "kind": numbers.get("kind", "qwen3_vl")}
    config = vision_config(tokenizer, **parts, max_length=longest)
    config.tie_word_embeddings = numbers["text"].get("tie_word_embeddings", False)
    config.save_pretrained(folder)
    save_processor(tokenizer, folder, max_length=longest, max_pixels=numbers["max_pixels"])
    return config


def screenshot() -> bytes:
    """Return a PNG with words, lines and a photograph's noise, as large as a screenshot of a page."""
    drawn = random.Random(0)
    image = Image.new("RGB", SIZE, "white")
    image.paste(Image.frombytes("RGB", (200, 120), drawn.randbytes(200 * 120 * 3)), (780, 20))
    draw = ImageDraw.Draw(image)
    for line in range(20, 780, 16):
        words = " ".join("".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(2, 9))) for _ in range(16))
        draw.text((20, line), words[:120], fill=(drawn.randrange(120), 0, drawn.randrange(160)))
    file = BytesIO()
    image.save(file, "png")
    return file.getvalue()


class Screenshots:
    """Files that no two are the same of: one picture with a comment of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._content = screenshot()
        self.size_bytes = len(self._content)

    def take(self, name: str) -> PromptImage:
        """Write one; its name decides its content."""
        text = b"tEXtComment\0" + name.encode()
        comment = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
        content = self._content[:33] + comment + self._content[33:]
        digest = hashlib.sha256(content).hexdigest()
        path = self._folder / f"{digest}.png"
        path.write_bytes(content)
        return PromptImage(digest, path)


@dataclass
class Asker:
    """Asks about images and checks the answers."""

    chat: ChatTokenizer
    tokens_of_image: int
    tokens: int

    def messages(self, images: Sequence[PromptImage]) -> list[dict[str, Any]]:
        """Return a turn of the user and one of the model for each image, but the last one's."""
        text = {"type": "text", "text": "Reach the goal."}
        turns = [
            [
                {"role": "user", "content": [image_part(str(image.path)), text]},
                {"role": "assistant", "content": "up"},
            ]
            for image in images
        ]
        return [message for turn in turns for message in turn][:-1]

    async def by_tokens(self, client: EngineClient, images: Sequence[PromptImage], number: int) -> None:
        """Ask as the collector does."""
        shown = [
            message
            if isinstance(message["content"], str)
            else message | {"content": [{"type": "image"}, message["content"][1]]}
            for message in self.messages(images)
        ]
        prompt = self.chat.encode_messages(shown)
        assert prompt is not None
        seen, response = await client.generate_with_images(
            prompt, images, self._sampling(number), request_id=f"r{number}", decode=lambda *_: ""
        )
        self._check(seen, response, images, len(prompt))

    async def by_chat(self, client: EngineClient, images: Sequence[PromptImage], number: int) -> None:
        """Ask as a client of the OpenAI API does, which sends every image in every turn."""
        seen, response = await client.generate_chat(
            self.messages(images),
            self._sampling(number),
            request_id=f"c{number}",
            chat_template_kwargs={},
            decode=lambda _: "",
        )
        self._check(seen, response, images)

    def _sampling(self, number: int) -> Sampling:
        return Sampling(0.0, 1.0, -1, 0.0, self.tokens, number)

    def _check(
        self, seen: Sequence[int], response: Any, images: Sequence[PromptImage], written: int = 0
    ) -> None:
        expected = written + len(images) * (self.tokens_of_image - 1)
        assert not written or len(seen) == expected, f"a prompt of {len(seen)} tokens, not {expected}"
        assert len(seen) > len(images) * self.tokens_of_image, "images are missing"
        count = len(response.token_ids)
        assert count == self.tokens, f"{count} of {self.tokens} tokens"
