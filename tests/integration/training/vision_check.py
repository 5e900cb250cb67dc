"""Compares an iteration of a vision run with transformers and LLaMA-Factory; prints one JSON line per step.

    python -m tests.integration.training.vision_check MODEL SHARD

MODEL is what the engine served. A process of its own, since only with torchvision found from the start does
transformers load the processor of a vision model.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.messages import countable, messages_of
from rl_agent.chat.context.window import ContextView, Round, images_of
from rl_agent.rollout.collector.prompts import image_part
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.trainer.llamafactory.dataset.export import Example, ExportedEpisode, ExportSettings, example
from rl_agent.trainer.llamafactory.template import OF_IMAGES
from rl_agent.types import Trajectory
from tests.integration.training.tiny_vision_model import MEDIA, VISION_START

DIALOGUE = TypeAdapter(ExportedEpisode)


class Reference:
    """The same model, tokenizer and image processor as the engine's, by transformers."""

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.folder = model
        self.processor = AutoProcessor.from_pretrained(model)
        self.model = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()

    def inputs(self, trajectory: Trajectory, step: int, context: list[int]) -> Any:
        """Return the model's input before the response of a step, by the record of what it saw.

        Earlier responses are the sampled tokens, which their text may not give back; where none is shown,
        the processor makes all of it.
        """
        import torch

        rounds = [
            Round(
                earlier.observation, earlier.generation.text, earlier.action, earlier.changed, earlier.invalid
            )
            for earlier in trajectory.steps[:step]
        ]
        recorded = trajectory.steps[step]
        view = ContextView(recorded.seen.whole_from, recorded.seen.as_lines)
        plain = _chat(self.folder).plain
        messages = messages_of(None, view, rounds, recorded.observation, image_part, plain)
        text = self.processor.apply_chat_template(
            countable(messages), tokenize=False, add_generation_prompt=True
        )
        opened = [_opened(path) for path in images_of(view, rounds, recorded.observation)]
        inputs = self.processor(text=text, images=opened or None, return_tensors="pt")
        if view.whole_from < step:
            inputs["input_ids"] = torch.tensor([context])
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == self.processor.image_token_id).int()
        return inputs

    def logprobs(self, inputs: Any, response: tuple[int, ...]) -> list[float]:
        import torch

        prompt = inputs["input_ids"].shape[1]
        more = torch.tensor([response])
        given = dict(inputs) | {
            "input_ids": torch.cat([inputs["input_ids"], more], 1),
            "attention_mask": torch.ones(1, prompt + len(response), dtype=torch.long),
            "mm_token_type_ids": torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], 1),
        }
        with torch.no_grad():
            logits = self.model(**given).logits[0, prompt - 1 : -1]
        return torch.log_softmax(logits, -1)[range(len(response)), list(response)].tolist()


def _opened(path: str) -> Any:
    from PIL import Image

    return Image.open(path).convert("RGB")


@cache
def _chat(model: Path) -> ChatTokenizer:
    return ChatTokenizer.load(str(model), {})


def trains_on_it(model: Path, trajectory: Trajectory, step: int, context: list[int]) -> bool:
    """Return whether the example is what the engine saw, and LLaMA-Factory makes as many images of it."""
    tokenizer, processor, template = _training_template(model)
    exported = example(DIALOGUE.validate_json(to_line(trajectory)), step, _terms(model, tokenizer))
    response = list(trajectory.steps[step].generation.token_ids)
    if not isinstance(exported, Example) or exported.input_ids.tolist() != context + response:
        return False
    images, ids = list(exported.images), exported.input_ids.tolist()
    inputs = template.mm_plugin.get_mm_inputs(images, [], [], [len(images)], [0], [0], [ids], processor)
    patches = int(inputs["image_grid_thw"].prod(-1).sum())
    placeholders = ids.count(processor.image_token_id)
    return patches == placeholders * processor.image_processor.merge_size**2


def _terms(model: Path, tokenizer: Any) -> ExportSettings:
    return ExportSettings(
        chat=ChatTokenizer.load(str(model), {}),
        media=frozenset(tokenizer.convert_tokens_to_ids(list(MEDIA))),
        image_start=tokenizer.convert_tokens_to_ids(VISION_START),
        mask_history=True,
        image_max_pixels=2**24,
        images=Path("images"),
    )


@cache
def _training_template(model: Path) -> tuple[Any, Any, Any]:
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments, ModelArguments
    from llamafactory.model import load_tokenizer

    loaded = load_tokenizer(ModelArguments(model_name_or_path=str(model)))
    template = get_template_and_fix_tokenizer(
        loaded["tokenizer"], DataArguments(template=OF_IMAGES["qwen3_vl"])
    )
    return loaded["tokenizer"], loaded["processor"], template


def compare(model: Path, shard: Path) -> Iterator[dict[str, Any]]:
    """Steps up to an episode's first response that names a media token.

    Random weights do that at times, and transformers would look for one more image.
    """
    reference = Reference(model)
    media = set(reference.processor.tokenizer.convert_tokens_to_ids(list(MEDIA)))
    for trajectory in read_shard(shard)[1]:
        context: list[int] = []
        for number, step in enumerate(trajectory.steps):
            response = step.generation.token_ids
            context = [*([] if step.context_reset else context), *step.prompt_token_ids]
            prompt = list(context)
            context += response
            if media & set(response):
                break
            if not step.seen.images:  # sent as tokens: random text may be tokenised otherwise
                continue
            inputs = reference.inputs(trajectory, number, prompt)
            differences = zip(step.generation.logprobs, reference.logprobs(inputs, response), strict=True)
            yield {
                "step": number,
                "images": len(step.seen.images),
                "shown_from": step.seen.whole_from,
                "placeholders": prompt.count(reference.processor.image_token_id),
                "is_same_prompt": inputs["input_ids"][0].tolist() == prompt,
                "logprob_difference": max(abs(ours - theirs) for ours, theirs in differences),
                "is_trained_on": trains_on_it(model, trajectory, number, prompt),
            }


if __name__ == "__main__":
    for line in compare(Path(sys.argv[1]), Path(sys.argv[2])):
        print(json.dumps(line))
