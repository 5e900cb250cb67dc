"""Sequences with images, packed and with shared prefixes, against plain transformers, one at a time."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.data.images import placed_images
from rl_agent.trainer.grpo.data.prefixes import chain_of
from rl_agent.trainer.grpo.data.samples import Segment
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.policy import PolicyModel, build_model
from rl_agent.trainer.grpo.model.vision import ImageReader

CPU = torch.device("cpu")
VOCABULARY, START, END, IMAGE, VIDEO = 120, 1, 2, 3, 4
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
IDS = {
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
}


def config_of(kind):
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3VLConfig

    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    text = TEXT | {"rope_parameters": rope}
    if kind == "qwen3_vl":
        vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 16}
        vision |= {"out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        return Qwen3VLConfig(text_config=text, vision_config=vision, **IDS)
    if kind == "qwen2_5_vl":
        vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14}
        vision |= {"out_hidden_size": 64, "window_size": 56, "fullatt_block_indexes": [1]}
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


@pytest.fixture(params=["qwen3_vl", "qwen2_5_vl", "qwen2_vl"])
def policy(request):
    """A tiny random vision model with its reader."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    torch.manual_seed(0)
    model = build_model(config_of(request.param), activation_checkpointing=0.0)
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    patch = model.config.vision_config.patch_size
    size = {"shortest_edge": 4 * patch**2, "longest_edge": 2**20}
    policy = PolicyModel(model, temperature=1.0, chunk_tokens=32)
    policy.reader = ImageReader(Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=size), model)
    return policy


def pictures(policy, folder):
    """Files of noise in different sizes, and the number of tokens of each."""
    unit = 2 * policy.model.config.vision_config.patch_size
    generator, files = np.random.default_rng(0), []
    for rows, columns in ((2, 2), (3, 2), (1, 4)):
        pixels = generator.integers(0, 256, (rows * unit, columns * unit, 3), np.uint8)
        file = folder / "picture.png"
        Image.fromarray(pixels).save(file)
        name = f"{hashlib.sha256(file.read_bytes()).hexdigest()}.png"
        files.append((str(file.rename(folder / name)), rows * columns))
    return files


def segments(files):
    """Three siblings, two steps of one episode, the same tokens with another picture, and one without any."""
    generator = np.random.default_rng(1)

    def words(count):
        return generator.integers(10, VOCABULARY, count).tolist()

    def shown(file):
        return [START, *[IMAGE] * file[1], END]

    def segment(prompt, response, *images):
        tokens = np.array([*prompt, *response], np.int32)
        is_response = np.arange(len(tokens)) >= len(prompt)
        behaviour = np.zeros(len(tokens), np.float32)
        return Segment(tokens, is_response, behaviour, tuple(path for path, _ in images))

    first, second, third = files
    asked = [*words(5), *shown(first), *words(7)]
    longer = [*asked, *words(3), *shown(second), *words(4)]
    siblings = [segment(asked, words(count), first) for count in (6, 9, 4)]
    tokens_alike = segment(asked, words(5), (second[0], first[1]))
    return [
        *siblings,
        segment(longer, words(8), first, second),
        segment([*words(4), *shown(third), *words(2), *shown(first), *words(3)], words(5), third, first),
        segment(words(9), words(6)),
    ], tokens_alike


def rows_of(policy, chosen):
    images = [tuple(placed_images(segment, policy.image_token)) for segment in chosen]
    return [Row(segment, 1.0, 1, i, own) for i, (segment, own) in enumerate(zip(chosen, images, strict=True))]


def one_by_one(policy, rows):
    """The logprobs by transformers' own way with images."""
    attention.use(policy.model, "sdpa")
    logprobs = []
    for row in rows:
        tokens = torch.as_tensor(row.segment.token_ids).long()
        inputs = {"input_ids": tokens[None]}
        if row.images:
            patches = [policy.reader.patches(image) for image in row.images]
            inputs["pixel_values"] = torch.cat([each.values for each in patches])
            inputs["image_grid_thw"] = torch.stack([each.grid for each in patches])
            inputs["mm_token_type_ids"] = (tokens == IMAGE).int()[None]
        log_p = policy.model(**inputs, use_cache=False).logits[0].log_softmax(-1)
        chosen = torch.as_tensor(np.flatnonzero(row.segment.is_response))
        logprobs.append(log_p[chosen - 1, tokens[chosen]])
    attention.use(policy.model, attention.NAME)
    return torch.cat(logprobs)


def gradients(policy, logprobs):
    policy.zero_grad(set_to_none=True)
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("shares", [False, True])
def test_packed_images_give_the_logprobs_and_gradients_of_one_at_a_time(policy, tmp_path, shares):
    chosen, _ = segments(pictures(policy, tmp_path))
    rows = rows_of(policy, chosen)
    batch = pack(rows, CPU, shares=shares, reader=policy.reader)
    assert (batch.key_places is not None) == shares
    assert len(batch.image_grids) == (4 if shares else 7), "a shared image is computed once"
    logprobs, _ = policy(batch)
    expected = one_by_one(policy, rows)
    assert logprobs.std() > 0.1
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    found, wanted = gradients(policy, policy(batch)[0]), gradients(policy, one_by_one(policy, rows))
    assert found.keys() == wanted.keys() and not any(".visual." in name for name in found)
    for name, gradient in found.items():
        difference = (gradient - wanted[name]).norm() / wanted[name].norm()
        assert difference < 1e-5, f"{name}: {difference}"


def test_equal_placeholders_of_other_images_are_no_shared_prefix(policy, tmp_path):
    files = pictures(policy, tmp_path)
    files[1] = (files[1][0], files[0][1])  # one of four tokens, by its name alone
    chosen, alike = segments(files)
    rows = rows_of(policy, [chosen[0], alike])
    assert (chosen[0].token_ids[:17] == alike.token_ids[:17]).all()
    assert [neighbour.common for neighbour in chain_of([row.identities for row in rows])] == [0, 6]


def test_an_image_of_other_tokens_than_the_engine_made_is_refused(policy, tmp_path):
    files = pictures(policy, tmp_path)
    chosen, _ = segments([(files[0][0], 5), *files[1:]])
    with pytest.raises(ConfigError, match="the engine made 5 tokens of it"):
        pack(rows_of(policy, chosen), CPU, reader=policy.reader)


def test_a_placeholder_that_the_model_wrote_leaves_no_place_for_images(policy, tmp_path):
    chosen, _ = segments(pictures(policy, tmp_path))
    written = Segment(np.append(chosen[0].token_ids, IMAGE), chosen[0].is_response, chosen[0].behaviour)
    assert placed_images(written, IMAGE) is None
    assert placed_images(chosen[-1], None) == [] and placed_images(chosen[0], None) is None
