"""A real vLLM takes a trained vision model while it runs; its logprobs are those of the trainer."""

import asyncio
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.data.images import placed_images
from rl_agent.trainer.grpo.data.samples import Segment
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.file_layout import FileLayout
from rl_agent.trainer.grpo.model.policy import PolicyModel, build_model, read_config
from rl_agent.trainer.grpo.model.vision import ImageReader
from rl_agent.trainer.grpo.publish.served import ServedWeights
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import SnapshotStore
from tests.integration.pool.images.test_images_in_vllm import (
    REQUESTS,
    TOKENS,
    answers_by_tokens,
    cut_pool,
    make_pictures,
    prompts_of,
    two_servers,
)
from tests.support.pool_setup import collector
from tests.unit.weights.weight_versions import settings

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(900)]

IN_BF16 = ("engine.dtype=bfloat16", "engine.extra_args.enable-prefix-caching=false")
"""Settings for recurrent layers on a CPU, where the kernel of vLLM 0.28 takes bf16 alone."""


def changed_policy(folder: Path, kind: str, dtype: torch.dtype) -> PolicyModel:
    """A policy that is far from the model of the folder, and from a near-uniform one."""
    model = build_model(
        read_config(folder),
        activation_checkpointing=0.0,
        implementation="sdpa" if kind == "qwen3_5" else attention.NAME,
        freeze_vision_tower=False,
    )
    model.load_state_dict(load_file(folder / "model.safetensors"))
    torch.manual_seed(1)
    for parameter in model.parameters():
        changed = parameter.data + 0.05 * torch.randn_like(parameter)
        parameter.data.copy_(changed.to(dtype))
    files = FileLayout.of(model, folder)
    policy = PolicyModel(model.eval(), temperature=1.0, chunk_tokens=2048, files=files)
    policy.reader = ImageReader(Qwen2VLImageProcessorPil.from_pretrained(folder), model)
    return policy


async def update(plans, version) -> None:
    """Load a version into each of the engines."""
    async with aiohttp.ClientSession() as session:
        for plan in plans:
            server = VllmServer(session, plan.config.engine.base_url, timeout_s=120)
            await server.load(version, previous=None)


async def answers_of_pools(plans, version, chat, prompts):
    """Answers of a pool whose engines take a version meanwhile, and of one that has it from the start."""
    answers = []
    for is_updated in (True, False):
        async with cut_pool(plans) as (pool, *_), collector(pool.url, timeout_s=200) as client:
            running = asyncio.create_task(answers_by_tokens(client, chat, prompts))
            if is_updated:
                await pool.until(lambda pool=pool: pool.state.account.tokens > TOKENS)
                await update(plans, version)
            answers.append(await running)
    return answers


@torch.no_grad()
def differences(policy: PolicyModel, answers, prompts) -> torch.Tensor:
    """Absolute differences of the logprobs that were recorded from those of a policy."""
    rows = []
    for (prompt, answer), (_, _, shown) in zip(answers, prompts, strict=True):
        tokens = np.array([*prompt, *answer.token_ids], np.int32)
        behaviour = np.array([*[0.0] * len(prompt), *answer.logprobs], np.float32)
        is_response = np.arange(len(tokens)) >= len(prompt)
        segment = Segment(tokens, is_response, behaviour, tuple(str(image.path) for image in shown))
        images = placed_images(segment, policy.image_token)
        if images is not None:  # or the model wrote a placeholder itself
            rows.append(Row(segment, 1.0, 1, len(rows), tuple(images)))
    assert len(rows) > REQUESTS / 2
    batch = pack(rows, torch.device("cpu"), reader=policy.reader)
    return (policy(batch)[0] - batch.behaviour).abs()


@pytest.mark.parametrize(
    ("kind", "dtype", "words", "mean", "largest"),
    [
        ("qwen3_vl", torch.float32, (), 1e-5, 1e-4),
        ("qwen3_5", torch.bfloat16, IN_BF16, 0.01, 0.05),
    ],
    ids=["qwen3_vl", "qwen3_5"],
)
def test_an_updated_engine_sees_images_as_the_trainer_does(tmp_path, kind, dtype, words, mean, largest):
    with (
        two_servers(tmp_path, "weights=inplace", *words, kind=kind) as plans,
        SnapshotStore(tmp_path / "store", keep_versions=2) as store,
    ):
        policy = changed_policy(tmp_path / "model", kind, dtype)
        version = Publisher(store, settings()).publish(1, ServedWeights(policy, dtype))
        chat = ChatTokenizer.load(plans[0].config.model.base_model, {})
        prompts = list(prompts_of(chat, make_pictures(plans[0].config.paths.images)))
        mixed, updated = asyncio.run(answers_of_pools(plans, version, chat, prompts))
    for answers in (mixed, updated):
        assert sum(len(each.spans) > 1 for _, each in answers) > REQUESTS / 2
    found = differences(policy, updated, prompts)
    print(f"{kind}: {len(found)} tokens, mean {found.mean():.2g}, largest {found.max():.2g}")
    assert found.mean() < mean and found.max() < largest
    assert differences(policy, mixed, prompts).max() > 5 * largest, "nothing was sampled before the update"
