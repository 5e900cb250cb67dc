"""Sequences with images, packed and with shared prefixes, against plain transformers, one at a time."""

import threading

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForImageTextToText

from rl_agent.config.sections.grpo import ParallelSettings
from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.batch import pack
from rl_agent.trainer.grpo.data.images import placed_images
from rl_agent.trainer.grpo.data.prefixes import chain_of
from rl_agent.trainer.grpo.data.samples import Segment
from rl_agent.trainer.grpo.model import attention, vision
from rl_agent.trainer.grpo.model.file_layout import FileLayout
from rl_agent.trainer.grpo.model.lora import add_adapter, initialize
from rl_agent.trainer.grpo.model.parallel import shard
from rl_agent.trainer.grpo.publish.served import export
from rl_agent.trainer.grpo.step.optimizer import AdamW
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.trainer.model.tiny_vision import (
    IMAGE,
    PlainModel,
    pictures,
    rows_of,
    segment,
    shown,
    vision_groups,
    vision_policy,
    words,
)
from tests.integration.trainer.settings import (
    PARALLEL,
    batch_settings,
    lora_settings,
    loss_settings,
    trainer_settings,
)

CPU = torch.device("cpu")
KINDS = ["qwen3_vl", "qwen2_5_vl", "qwen2_vl", "qwen3_5"]


@pytest.fixture(params=KINDS)
def policy(request):
    return vision_policy(request.param)


def segments(files):
    """Three siblings, two steps of one episode, the same tokens with another picture, and one without any."""
    generator = np.random.default_rng(1)
    first, second, third = files
    prompt = [*words(generator, 5), *shown(first), *words(generator, 7)]
    longer = [*prompt, *words(generator, 3), *shown(second), *words(generator, 4)]
    siblings = [segment(prompt, words(generator, count), first) for count in (6, 9, 4)]
    tokens_alike = segment(prompt, words(generator, 5), (second[0], first[1]))
    others = [*words(generator, 4), *shown(third), *words(generator, 2), *shown(first), *words(generator, 3)]
    return [
        *siblings,
        segment(longer, words(generator, 8), first, second),
        segment(others, words(generator, 5), third, first),
        segment(words(generator, 9), words(generator, 6)),
    ], tokens_alike


def weighted(logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs * torch.linspace(-1, 1, len(logprobs))).sum()


@pytest.mark.parametrize("is_trained", [False, True], ids=["tower frozen", "tower trained"])
@pytest.mark.parametrize("shares", [False, True], ids=["apart", "prefixes shared"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_images_give_the_numbers_of_plain_transformers(kind, shares, is_trained, tmp_path):
    shares = shares and kind != "qwen3_5"  # its sequences are scored one after the other
    recomputed = {"activation_checkpointing": float(is_trained)}
    policy = vision_policy(kind, freeze_vision_tower=not is_trained, **recomputed).double()
    plain = PlainModel(policy)
    chosen, _ = segments(pictures(policy.model.config, tmp_path))
    batch = pack(rows_of(policy, chosen), CPU, shares=shares, reader=policy.reader)
    assert (batch.key_places is not None) == shares
    assert sum(map(len, batch.images)) == (4 if shares else 7)
    logprobs, _ = policy(batch)
    weighted(logprobs).backward()
    expected = torch.cat([plain.logprobs(segment) for segment in chosen])
    weighted(expected).backward()
    assert logprobs.std() > 0.1
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-6)
    wanted = {n: g for n, g in plain.gradients().items() if is_trained or ".visual." not in n}
    packed = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    assert packed.keys() == wanted.keys() and is_trained == any(".visual." in name for name in packed)
    for name, gradient in packed.items():
        difference = (gradient - wanted[name]).norm() / wanted[name].norm()
        assert difference < 1e-6, f"{name}: {difference}"


def computed_images(policy) -> list[int]:
    """Count the images that the tower computes, a number for each of its passes from now on."""
    counts: list[int] = []
    tower = policy.model.model.visual
    tower.register_forward_pre_hook(lambda *args: counts.append(len(args[2]["grid_thw"])), with_kwargs=True)
    return counts


def test_a_frozen_tower_computes_each_image_once_for_all_batches(policy, tmp_path, monkeypatch):
    chosen, _ = segments(pictures(policy.model.config, tmp_path))
    batches = [pack([row], CPU, reader=policy.reader) for row in rows_of(policy, chosen)]
    computed = computed_images(policy)
    kept = [policy(batch)[0] for batch in batches]
    assert computed == [1, 1, 1], "three images in all"
    monkeypatch.setattr(vision, "KEPT_FEATURE_BYTES", 0)
    forgetful = vision_policy(policy.model.config.model_type)
    computed = computed_images(forgetful)
    for batch, logprobs in zip(batches, kept, strict=True):
        torch.testing.assert_close(logprobs, forgetful(batch)[0], rtol=0, atol=1e-6)
    assert sum(computed) == sum(len(segment.images) for segment in chosen) == 7
    assert forgetful.reader._kept == {}


def test_a_layer_of_the_tower_computes_all_images_in_one_call(policy, tmp_path, monkeypatch):
    chosen, _ = segments(pictures(policy.model.config, tmp_path))
    batch = pack(rows_of(policy, chosen), CPU, reader=policy.reader)
    expected, _ = policy(batch)
    policy.reader.forget()
    calls: list[int] = []

    def flash(query, key, value, scale, window, ends, *_, is_causal, **__):
        """Compute what the kernel does, which needs a GPU."""
        assert window is None and not is_causal
        calls.append(len(ends) - 1)
        spans = [slice(*span) for span in ends.unfold(0, 2, 1)]
        parts = [[part[:, :, span] for part in (query, key, value)] for span in spans]
        attended = [scaled_dot_product_attention(*part, scale=scale) for part in parts]
        return torch.cat(attended, dim=2).transpose(1, 2)

    monkeypatch.setattr(attention, "_flash", flash)
    attention.use_in_tower(policy.model)
    torch.testing.assert_close(policy(batch)[0], expected, rtol=0, atol=1e-6)
    last_layers = calls[1::2]
    assert sum(last_layers) == 3, "each image once"


def test_the_images_of_a_batch_are_read_at_the_same_time(policy, tmp_path, monkeypatch):
    files = pictures(policy.model.config, tmp_path)
    begun, read = threading.Barrier(len(files), timeout=30), policy.reader._read_file
    monkeypatch.setattr(policy.reader, "_read_file", lambda path: (begun.wait(), read(path))[1])
    chosen, _ = segments(files)
    policy(pack(rows_of(policy, chosen), CPU, reader=policy.reader))


def test_pixels_are_those_that_the_processor_makes_of_each_colour(policy, tmp_path):
    (path, _), *_ = pictures(policy.model.config, tmp_path)
    processor = policy.reader._processor
    processor.image_mean, processor.image_std = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
    with Image.open(path) as image:
        expected = processor(image, return_tensors="pt")["pixel_values"]
    values = policy.reader._patches(path).values
    assert values.dtype == torch.uint8
    torch.testing.assert_close(policy.reader._pixels(values), expected, rtol=0, atol=1e-6)


def test_images_of_the_next_micro_batch_are_read_before_one_is_computed(alone, tmp_path, monkeypatch):
    policy = vision_policy("qwen3_vl")
    groups = vision_groups(pictures(policy.model.config, tmp_path))
    read, plain = [], policy.reader._read_file
    monkeypatch.setattr(policy.reader, "_read_file", lambda path: (read.append(path), plain(path))[1])
    step = UpdateStep(policy, None, alone, loss_settings(), batch_settings(token_budget=30))
    computed, ahead, loss = set(), [], step._unnormalized_loss

    def loss_of(batch, of_start):
        computed.update(image.path for images in batch.images for image in images)
        ahead.append(policy.reader._reading.cache_info().currsize - len(computed))
        return loss(batch, of_start)

    monkeypatch.setattr(step, "_unnormalized_loss", loss_of)
    for group in groups:
        step.add([group])
    step.finish()
    assert max(ahead) > 0
    paths = {path for g in groups for s in g.samples for part in s.segments for path in part.images}
    assert sorted(read) == sorted(paths)


def test_features_that_are_kept_are_bounded_and_the_newest(policy, tmp_path, monkeypatch):
    files = pictures(policy.model.config, tmp_path)
    alone = [segment(shown(file), [20, 30], file) for file in files]
    batches = [pack([row], CPU, reader=policy.reader) for row in rows_of(policy, alone)]
    policy(batches[0])
    (kept,) = policy.reader._kept.values()
    size = kept.untyped_storage().nbytes()
    assert size == kept.nbytes
    monkeypatch.setattr(vision, "KEPT_FEATURE_BYTES", 3 * size)  # the second one has 6 tokens, to 4 and 4
    for batch in batches[1:]:
        policy(batch)
    assert list(policy.reader._kept) == [path for path, _ in files[1:]]


def test_features_are_forgotten_after_a_step_also_those_of_a_reference(alone, tmp_path):
    policy, reference = vision_policy("qwen3_vl"), vision_policy("qwen3_vl", seed=9)
    step = UpdateStep(policy, reference, alone, loss_settings(kl_in="loss"), batch_settings())
    step.add(vision_groups(pictures(policy.model.config, tmp_path)))
    assert policy.reader._kept and reference.reader._kept
    step.finish()
    assert not policy.reader._kept and not reference.reader._kept


def test_equal_placeholders_of_other_images_are_no_shared_prefix(policy, tmp_path):
    files = pictures(policy.model.config, tmp_path)
    files[1] = (files[1][0], files[0][1])  # one of four tokens, by its name alone
    chosen, alike = segments(files)
    rows = rows_of(policy, [chosen[0], alike])
    assert (chosen[0].token_ids[:17] == alike.token_ids[:17]).all()
    assert [neighbour.common for neighbour in chain_of([row.identities for row in rows])] == [0, 6]


def test_an_image_of_other_tokens_than_the_engine_made_is_refused(policy, tmp_path):
    files = pictures(policy.model.config, tmp_path)
    chosen, _ = segments([(files[0][0], 5), *files[1:]])
    with pytest.raises(ConfigError, match="the engine made 5 tokens of it"):
        pack(rows_of(policy, chosen), CPU, reader=policy.reader)


def test_a_placeholder_that_the_model_wrote_leaves_no_place_for_images(policy, tmp_path):
    chosen, _ = segments(pictures(policy.model.config, tmp_path))
    written = Segment(np.append(chosen[0].token_ids, IMAGE), chosen[0].is_response, chosen[0].behaviour)
    assert placed_images(written, IMAGE) is None
    assert placed_images(chosen[-1], None) == [] and placed_images(chosen[0], None) is None


@pytest.mark.parametrize(
    ("kind", "is_frozen", "adapter"),
    [
        ("qwen3_vl", True, None),
        ("qwen3_vl", True, 4),
        ("qwen3_vl", False, None),
        ("qwen3_vl", False, 4),
        ("qwen3_5", True, 4),
        ("qwen3_5", False, None),
    ],
)
def test_a_model_is_published_as_it_was_trained(alone, kind, is_frozen, adapter, tmp_path):
    policy = vision_policy(kind, freeze_vision_tower=is_frozen)
    PlainModel(policy).model.save_pretrained(tmp_path / "base")
    policy.files = FileLayout.of(policy.model, tmp_path / "base")
    add_adapter(policy.model, lora_settings(rank=adapter), policy.files)
    initialize(policy.model, seed=1)
    shard(policy, alone, ParallelSettings.model_validate(PARALLEL))
    settings = trainer_settings(tmp_path, tmp_path).optimizer
    optimizer = AdamW(policy, settings, offload=False)
    groups = vision_groups(pictures(policy.model.config, tmp_path))
    for _ in range(2):  # the first one moves B alone, which is zero before
        step = UpdateStep(policy, None, alone, loss_settings(), batch_settings())
        step.add(groups)
        assert step.finish()["grad_norm"] > 0
        optimizer.update()
        policy.zero_grad(set_to_none=True)
    export(policy, alone, tmp_path / "base", tmp_path / "served", torch.float32)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "served"))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("language_model" in name for name in changed)
    assert any(".visual." in name for name in changed) == (not is_frozen)
    served = AutoModelForImageTextToText.from_pretrained(tmp_path / "served", attn_implementation="sdpa")
    segments = [segment for sample in groups[0].samples for segment in sample.segments]
    plain = PlainModel(policy, served)
    logprobs, _ = policy(pack(rows_of(policy, segments), CPU, reader=policy.reader))
    expected = torch.cat([plain.logprobs(segment) for segment in segments])
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-4)
