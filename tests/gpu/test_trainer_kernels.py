"""The trainer's own choice of kernels on a GPU equals the same written out in fp32."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rl_agent.trainer.grpo.data.batch import PackedBatch, Row, pack
from rl_agent.trainer.grpo.model.logprobs import chosen_logprobs
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks, grid
from tests.integration.trainer.model.families import FAMILIES, ONE_AFTER_THE_OTHER, plain_logprobs, save
from tests.integration.trainer.model.test_policy import rows
from tests.integration.trainer.samples import random_groups
from tests.integration.trainer.settings import trainer_settings
from tests.unit.trainer.grpo.model.test_attention import BATCHES, packed
from tests.unit.trainer.grpo.model.test_logprobs import VOCABULARY, rivals

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

SHAPES = {
    "grouped heads": {"heads": 8, "key_heads": 2, "size": 64, "value_size": 64},
    "a size that is no multiple of 8": {"heads": 4, "key_heads": 4, "size": 36, "value_size": 36},
    "values smaller than keys": {"heads": 4, "key_heads": 4, "size": 192, "value_size": 128},
    "heads larger than the kernel knows": {"heads": 2, "key_heads": 1, "size": 512, "value_size": 512},
}
EXTRAS = {
    "nothing": {},
    "a window": {"sliding_window": 50},
    "a cap": {"softcap": 20.0},
    "a window and sinks": {"sliding_window": 50, "s_aux": True},
    "its own scale": {"scaling": 0.3},
}


@pytest.fixture(scope="module")
def gpu() -> Iterator[Ranks]:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    torch.cuda.set_device(0)
    try:
        yield grid(torch.device("cuda", 0), None)
    finally:
        dist.destroy_process_group()


def on_device(batch: PackedBatch) -> PackedBatch:
    names = "input_ids", "boundaries", "key_boundaries", "key_places"
    tensors = {name: getattr(batch, name) for name in names}
    return replace(batch, **{name: t if t is None else t.cuda() for name, t in tensors.items()})


def attend(dtype: torch.dtype, shape: dict[str, int], batch: PackedBatch, extra: dict) -> list[torch.Tensor]:
    """Output and gradients."""
    torch.manual_seed(0)
    total = batch.input_ids.shape[1]
    sizes = [
        (shape["heads"], shape["size"]),
        (shape["key_heads"], shape["size"]),
        (shape["key_heads"], shape["value_size"]),
    ]
    leaves = [torch.randn(1, heads, total, size, device="cuda").to(dtype) for heads, size in sizes]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    if "s_aux" in extra:
        extra = extra | {"s_aux": torch.linspace(-1, 1, shape["heads"], device="cuda")}
    output = packed(batch, *leaves, **extra)
    output.float().square().mean().backward()
    return [output.detach().float(), *(leaf.grad.float() for leaf in leaves)]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_in_half_precision_is_that_in_fp32(shape, extra, batch):
    on_gpu = on_device(BATCHES[batch])
    actual = attend(torch.bfloat16, SHAPES[shape], on_gpu, EXTRAS[extra])
    expected = attend(torch.float32, SHAPES[shape], on_gpu, EXTRAS[extra])
    for mine, theirs in zip(actual, expected, strict=True):
        assert (mine - theirs).norm() / theirs.norm() < 0.02


def test_logits_of_half_precision_operands_are_fp32():
    hidden, moved, weight = (tensor.cuda() for tensor in rivals())
    targets = torch.zeros(len(hidden), dtype=torch.long, device="cuda")

    def score(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return chosen_logprobs(h, w, targets, temperature=1.0, chunk_tokens=64)[0].double()

    exact = (score(moved.double(), weight.double()) - score(hidden.double(), weight.double())).exp()
    actual = (score(moved, weight) - score(hidden, weight)).exp()
    assert (actual / exact - 1).abs().max() < 1e-4
    assert len(weight) == VOCABULARY


@pytest.fixture(scope="module")
def written_out(tmp_path_factory) -> dict[str, tuple[Path, torch.Tensor]]:
    """Each family's files, and its log-probabilities by plain transformers before Liger patches a class."""
    actual = {}
    for name, family in (FAMILIES | {name: entry[0] for name, entry in ONE_AFTER_THE_OTHER.items()}).items():
        folder = tmp_path_factory.mktemp("family") / "model"
        save(folder, family)
        with torch.no_grad():
            actual[name] = folder, plain_logprobs(folder, rows(5))
    return actual


@pytest.mark.parametrize("name", [*FAMILIES, *ONE_AFTER_THE_OTHER])
def test_families_are_scored_in_half_precision_as_their_first_check_says(
    gpu, tmp_path, written_out, name, caplog
):
    model, expected = written_out[name]
    settings = trainer_settings(model, tmp_path, parallel={"precision": "bf16"})
    policy = load_policy(settings, gpu)
    assert "on this device" not in caplog.text  # no false alarm of the kernels
    assert policy.is_packed == (name in FAMILIES or "llama" in name)
    with torch.no_grad():
        actual, _ = policy(pack(rows(5), gpu.device))
    expected = expected.to(gpu.device)
    assert (actual - expected).abs().median() < 0.05 * expected.std()


def test_prompts_computed_once_are_scored_as_copies_are(gpu, tmp_path, written_out):
    model, _ = written_out[next(iter(FAMILIES))]
    settings = trainer_settings(model, tmp_path, parallel={"precision": "bf16"})
    policy = load_policy(settings, gpu)
    assert policy.shares_prefixes
    segments = [s for group in random_groups(3, prompt=40) for x in group.samples for s in x.segments]
    all_rows = [Row(segment, 1.0, 1, 0) for segment in segments]
    with torch.no_grad():
        once, copies = (policy(pack(all_rows, gpu.device, shares=shares))[0] for shares in (True, False))
    assert (once - copies).abs().median() < 0.05 * copies.std()
