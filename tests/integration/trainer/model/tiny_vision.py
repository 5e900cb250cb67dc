"""Tiny random vision models, files of noise for them, sequences that show these, and plain transformers."""

import copy
import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel

from rl_agent.trainer.grpo.data.batch import Row
from rl_agent.trainer.grpo.data.images import placed_images
from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.policy import PolicyModel, build_model
from rl_agent.trainer.grpo.model.vision import ImageReader
from tests.integration.trainer.model.families import SIZES

VOCABULARY, START, END, IMAGE, VIDEO = 120, 1, 2, 3, 4
TEXT = SIZES | {"vocab_size": VOCABULARY, "tie_word_embeddings": False}
IDS = {
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
}
Picture = tuple[str, int]
"""The path of a file, and the number of its tokens."""


def config_of(kind: str) -> PretrainedConfig:
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3_5Config, Qwen3VLConfig

    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    text = TEXT | {"rope_parameters": rope}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    if kind == "qwen3_5":
        linear = {f"linear_{name}": 2 for name in ("num_key_heads", "num_value_heads")}
        linear |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
        rope |= {"partial_rotary_factor": 1.0}
        vision |= {"patch_size": 16, "num_position_embeddings": 64}
        layers = ["linear_attention", "full_attention", "linear_attention"]
        return Qwen3_5Config(
            text_config=text | linear | {"layer_types": layers, "rope_parameters": rope},
            vision_config=vision,
            **IDS,
        )
    if kind == "qwen3_vl":
        vision |= {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        return Qwen3VLConfig(text_config=text, vision_config=vision, **IDS)
    if kind == "qwen2_5_vl":
        vision |= {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]}
        return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **IDS)
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 14,
    }
    return Qwen2VLConfig(text_config=text, vision_config=vision, **IDS)


def vision_policy(
    kind: str, *, seed: int = 0, freeze_vision_tower: bool = True, activation_checkpointing: float = 0.0
) -> PolicyModel:
    """A model with its reader, far from the near-uniform policy of a fresh one."""
    torch.manual_seed(seed)
    model = build_model(
        config_of(kind),
        activation_checkpointing=activation_checkpointing,
        implementation="sdpa" if kind == "qwen3_5" else attention.NAME,
        freeze_vision_tower=freeze_vision_tower,
    )
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    policy = PolicyModel(model, temperature=1.0, chunk_tokens=32)
    policy.reader = ImageReader(processor_of(model.config), model)
    return policy


def processor_of(config: PretrainedConfig):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    patch = config.vision_config.patch_size
    size = {"shortest_edge": 4 * patch**2, "longest_edge": 2**20}
    return Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=size)


def pictures(config: PretrainedConfig, folder: Path) -> list[Picture]:
    """Files of noise in different sizes."""
    unit = 2 * config.vision_config.patch_size
    generator, files = np.random.default_rng(0), []
    for rows, columns in ((2, 2), (3, 2), (1, 4)):
        pixels = generator.integers(0, 256, (rows * unit, columns * unit, 3), np.uint8)
        file = folder / "picture.png"
        Image.fromarray(pixels).save(file)
        name = f"{hashlib.sha256(file.read_bytes()).hexdigest()}.png"
        files.append((str(file.rename(folder / name)), rows * columns))
    return files


def words(generator: np.random.Generator, count: int) -> list[int]:
    return generator.integers(10, VOCABULARY, count).tolist()


def shown(picture: Picture) -> list[int]:
    """The tokens of a picture."""
    return [START, *[IMAGE] * picture[1], END]


def segment(prompt: list[int], response: list[int], *images: Picture) -> Segment:
    tokens = np.array([*prompt, *response], np.int32)
    is_response = np.arange(len(tokens)) >= len(prompt)
    behaviour = np.where(is_response, -4.0, 0.0).astype(np.float32)
    return Segment(tokens, is_response, behaviour, tuple(path for path, _ in images))


def vision_groups(files: list[Picture]) -> list[Group]:
    """Two groups: episodes of one to three turns with growing contexts, and one without any picture."""
    generator, groups = np.random.default_rng(2), []
    for index in range(2):
        samples = []
        for attempt, turns in enumerate((1, 3, 2, 0)):
            segments, prompt, images = [], words(generator, 6), []
            for turn in range(turns):
                images.append(files[(index + turn) % len(files)])
                prompt = [*prompt, *shown(images[-1]), *words(generator, 3)]
                segments.append(segment(prompt, words(generator, 5 + turn), *images))
            segments = segments or [segment(prompt, words(generator, 9))]
            key = f"task-{index}:0:{attempt}"
            samples.append(TrainingSample(key, tuple(segments), float(generator.random()), Versions(0, 0)))
        groups.append(Group(f"1/task-{index}:0", tuple(samples)))
    return groups


def lone_picture(files: list[Picture]) -> list[Group]:
    """One group of two episodes, of which one shows a picture: never two ranks at a time see any."""
    generator = np.random.default_rng(3)
    prompts = [*words(generator, 4), *shown(files[0])], words(generator, 12)
    segments = segment(prompts[0], words(generator, 7), files[0]), segment(prompts[1], words(generator, 9))
    samples = [
        TrainingSample(f"task-0:0:{n}", (each,), float(n), Versions(0, 0)) for n, each in enumerate(segments)
    ]
    return [Group("1/task-0:0", tuple(samples))]


def rows_of(policy: PolicyModel, chosen: list[Segment]) -> list[Row]:
    images = [tuple(placed_images(segment, policy.image_token) or ()) for segment in chosen]
    return [Row(segment, 1.0, 1, i, own) for i, (segment, own) in enumerate(zip(chosen, images, strict=True))]


class PlainModel:
    """The same weights in plain transformers, which scores one sequence at a time."""

    def __init__(self, policy: PolicyModel, model: PreTrainedModel | None = None) -> None:
        """Copy a policy's weights, or take `model`."""
        config = copy.deepcopy(policy.model.config)
        if model is None:
            model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")
            model.to(next(policy.parameters()).dtype).load_state_dict(policy.model.state_dict())
        self.model = model.eval()
        self._processor = processor = processor_of(config)
        processor.do_rescale = False  # it would round once more than torchvision's does
        moments = np.array([processor.image_mean, processor.image_std], np.float32) * np.float32(255)
        processor.image_mean, processor.image_std = moments.tolist()

    def logprobs(self, segment: Segment) -> torch.Tensor:
        """Log-probabilities of the response tokens."""
        tokens = torch.as_tensor(segment.token_ids).long()
        inputs = {"input_ids": tokens[None]}
        if segment.images:
            images = [Image.open(path) for path in segment.images]
            inputs |= self._processor(images, return_tensors="pt")
            inputs["mm_token_type_ids"] = (tokens == IMAGE).int()[None]
        log_p = self.model(**inputs, use_cache=False).logits[0].log_softmax(-1)
        chosen = torch.as_tensor(np.flatnonzero(segment.is_response))
        return log_p[chosen - 1, tokens[chosen]]

    def gradients(self) -> dict[str, torch.Tensor]:
        """Gradients by the names of a policy."""
        return {f"model.{name}": p.grad for name, p in self.model.named_parameters() if p.grad is not None}
