"""The estimate of a step's memory against what was measured, and what is chosen by it."""

from dataclasses import replace
from functools import cache

import pytest

from rl_agent.monitor.flops import ModelShape, TowerShape
from rl_agent.paths import PROJECT_ROOT
from rl_agent.trainer.gpu_memory import FEATURES_GIB, choose, recomputes, step_gib, update_gib
from tests.unit.config.overrides.test_compose import compose

SHAPES = {
    "0.6b": ModelShape(1024, 3072, 28, 16, 8, 128, 151_936, is_tied=True),
    "1.7b": ModelShape(2048, 6144, 28, 16, 8, 128, 151_936, is_tied=True),
    "4b": ModelShape(2560, 9728, 36, 32, 8, 128, 151_936, is_tied=True),
    "8b": ModelShape(4096, 12_288, 36, 32, 8, 128, 151_936, is_tied=False),
    "14b": ModelShape(5120, 17_408, 40, 40, 8, 128, 151_936, is_tied=False),
}
ONE_STEP = "trainer.mini_batches=1"
H100_GIB = 79.6


@cache
def grpo(*words: str):
    return compose("trainer=grpo", "engine=cpu", *words).config.grpo


@pytest.mark.parametrize(
    ("shape", "share", "budget", "measured_gib"),
    [
        ("0.6b", 1.0, 16_384, 8.3),
        ("0.6b", 0.0, 16_384, 25.4),
        ("1.7b", 1.0, 16_384, 17.1),
        ("1.7b", 0.0, 16_384, 41.0),
        ("1.7b", 0.0, 8192, 27.4),
        ("4b", 1.0, 16_384, 35.0),
        ("8b", 1.0, 16_384, 70.4),
        ("8b", 1.0, 4096, 70.4),
        ("8b", 0.5, 16_384, 99.1),
        ("8b", 0.3, 16_384, 109.5),
    ],
)
def test_the_estimate_is_within_five_percent_of_the_measured_peak(shape, share, budget, measured_gib):
    """`benchmarks/trainer/throughput.py` on an H100, above 80 GiB on an H200; docs/…/measurements.md."""
    trainer = grpo(ONE_STEP, f"trainer.batch.token_budget={budget}")
    estimate = step_gib(SHAPES[shape], trainer, 1, share=share, offloads=True)
    assert estimate == pytest.approx(measured_gib, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "ranks", "words", "chosen"),
    [
        ("0.6b", 1, (), (0.0, False)),
        ("1.7b", 1, (), (0.0, False)),
        ("4b", 1, (), (0.5, True)),
        ("8b", 1, (ONE_STEP,), (1.0, True)),
        ("8b", 8, (), (0.0, True)),
        ("8b", 1, ("trainer.lora.rank=16",), (0.25, False)),
        ("1.7b", 1, ("trainer.parallel.offload_optimizer=true",), (0.0, True)),
        ("1.7b", 1, ("trainer.parallel.activation_checkpointing=1",), (1.0, False)),
    ],
)
def test_the_cheapest_settings_that_fit_are_chosen(shape, ranks, words, chosen):
    step = choose(SHAPES[shape], grpo(*words), ranks, device_gib=H100_GIB)
    assert (step.activation_checkpointing, step.offload_optimizer) == chosen
    assert step.needed_gib <= 0.95 * H100_GIB


def test_a_trainer_in_turns_with_an_engine_gives_its_moments_away():
    step = choose(SHAPES["0.6b"], grpo("trainer.placement=hybrid"), 1, device_gib=H100_GIB)
    assert step.offload_optimizer


def test_a_trainer_that_shares_its_gpu_leaves_the_engine_its_part():
    trainer = grpo("trainer.placement=shared")
    alone = choose(SHAPES["1.7b"], trainer, 1, device_gib=H100_GIB)
    beside = choose(SHAPES["1.7b"], trainer, 1, device_gib=H100_GIB, engine_share=0.4)
    assert not alone.offload_optimizer
    assert beside.activation_checkpointing > alone.activation_checkpointing
    assert beside.needed_gib <= 0.55 * H100_GIB


def test_the_estimate_of_a_vision_model_is_close_to_the_measured_peak():
    """`benchmarks/trainer/vision_step.py` on an H200, with Liger's kernels."""
    vision = replace(SHAPES["1.7b"], tower=TowerShape(1024, 4096, 24, 2, 4, 4, 2048))
    estimate = step_gib(vision, grpo(ONE_STEP), 1, share=0.0, offloads=True)
    assert estimate == pytest.approx(50.7, rel=0.05)


def test_a_vision_tower_takes_memory_and_more_if_it_is_trained():
    text = SHAPES["8b"]
    vision = replace(text, tower=TowerShape(1152, 4304, 27, 2, 4, 4, 4096))
    frozen, trained = grpo(ONE_STEP), grpo(ONE_STEP, "trainer.freeze_vision_tower=false")
    for share in (1.0, 0.0):
        plain, with_frozen, with_trained = (
            step_gib(shape, trainer, 1, share=share, offloads=True)
            for shape, trainer in ((text, frozen), (vision, frozen), (vision, trained))
        )
        assert with_frozen - plain > 2 * 0.576 + FEATURES_GIB
        assert with_trained - plain > 8 * 0.5
    assert with_trained - with_frozen > 10, "activations of all layers are kept"


def test_the_reference_of_a_vision_model_has_a_tower_of_its_own():
    vision = replace(SHAPES["8b"], tower=TowerShape(1152, 4304, 27, 2, 4, 4, 4096))
    for words, towers in ((), 1), (("trainer.lora.rank=16",), 0):
        of_reference = [
            step_gib(shape, grpo(ONE_STEP, "trainer.loss.kl_in=loss", *words), 2, share=1.0, offloads=True)
            - step_gib(shape, grpo(ONE_STEP, *words), 2, share=1.0, offloads=True)
            for shape in (SHAPES["8b"], vision)
        ]
        added = of_reference[1] - of_reference[0]
        assert added == pytest.approx(towers * (2 * 0.576 + FEATURES_GIB), rel=0.1, abs=1e-9)


def test_where_nothing_fits_the_least_is_returned():
    step = choose(SHAPES["14b"], grpo(), 1, device_gib=H100_GIB)
    assert (step.activation_checkpointing, step.offload_optimizer) == (1.0, True)
    assert step.needed_gib > H100_GIB


def test_llamafactory_recomputes_only_where_a_long_sample_needs_it():
    trainer = compose(num_gpus=8).config.llamafactory
    assert recomputes(SHAPES["8b"], trainer, 8, device_gib=H100_GIB)
    assert not recomputes(SHAPES["0.6b"], trainer, 8, device_gib=H100_GIB)
    assert not recomputes(SHAPES["8b"], trainer, 8, device_gib=0.0)
    set_off = trainer.model_copy(update={"gradient_checkpointing": False})
    assert not recomputes(SHAPES["8b"], set_off, 8, device_gib=H100_GIB)


def test_zero_stages_divide_what_their_names_say():
    trainer = compose(num_gpus=8).config.llamafactory.model_copy(update={"cutoff_len": 1})
    weights_gib = SHAPES["8b"].weights / 2**30
    for stage, each in (("zero1", 4 + 12 / 8), ("zero2", 2 + 14 / 8), ("zero3", 16 / 8), (None, 16)):
        needed = update_gib(SHAPES["8b"], trainer, 8, stage=stage, recomputes=True)
        assert needed == pytest.approx(each * weights_gib, rel=0.01)


SHAPES["32b"] = ModelShape(5120, 25_600, 64, 64, 8, 128, 151_936, is_tied=False)
GPUS_GIB = {"24 GB": 23.6, "40 GB": 39.4, "48 GB": 47.5, "80 GB": 79.6, "141 GB": 139.8}
PAGE = PROJECT_ROOT / "docs/how-to/which-model-on-which-gpu.md"


def largest(ranks: int, device_gib: float, *words: str) -> str:
    fitting = [
        name
        for name, shape in SHAPES.items()
        if choose(shape, grpo(*words), ranks, device_gib=device_gib).needed_gib <= 0.95 * device_gib
    ]
    return fitting[-1].upper() if fitting else ""


def test_the_page_names_the_largest_model_of_each_gpu():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[0][1:] == list(GPUS_GIB)
    for label, *cells in rows[2:]:
        ranks, words = int(label[0]), (("trainer.lora.rank=16",) if "lora" in label else ())
        for cell, device_gib in zip(cells, GPUS_GIB.values(), strict=True):
            usual, one_step = (largest(ranks, device_gib, *words, *more) for more in ((), (ONE_STEP,)))
            assert cell == (usual if usual == one_step else f"{usual} ({one_step}: one step)")
