"""The noise with which engines draw tokens for requests that have a seed, and the tokens drawn by it."""

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

COLUMNS = 151_936


def noise_of(*states: tuple[int, int, int], rows: int = 4) -> torch.Tensor:
    from rl_agent.engine.vllm_noise import write_noise

    noise = torch.full((rows, COLUMNS), -1.0, device="cuda")
    write_noise(noise, torch.tensor(states, device="cuda"))
    return noise.cpu()


def test_noise_is_exponential_and_of_its_seed_and_step_alone():
    noise = noise_of((0, 7, 0), (1, 7, 1), (3, 2**62 + 7, 0))
    assert (noise[2] == -1).all()
    assert (noise_of((5, 7, 0), (1, 9, 9), rows=6)[5] == noise[0]).all()
    expected = (torch.arange(COLUMNS) + 0.5) / COLUMNS
    for row in (0, 1, 3):  # Kolmogorov and Smirnov's test: above 1.95 once in a thousand
        uniform = 1 - torch.exp(-noise[row].double().sort().values)
        assert (uniform - expected).abs().max() * COLUMNS**0.5 < 1.95
    assert torch.corrcoef(noise[[0, 1, 3]]).triu(1).abs().max() < 0.02


def test_tokens_are_drawn_as_often_as_their_probabilities_say():
    from vllm.v1.sample.ops import topk_topp_sampler

    from rl_agent.engine.vllm_noise import draw_together

    one_by_one = topk_topp_sampler.random_sample
    draw_together()
    try:
        draw, requests, steps = topk_topp_sampler.random_sample, 512, 200
        generators = {row: torch.Generator("cuda").manual_seed(row) for row in range(requests)}
        probs = torch.tensor([0.6, 0.25, 0.1, 0.04, 0.01], device="cuda").expand(requests, 5)
        drawn = torch.stack([draw(probs.clone(), generators) for _ in range(steps)])
    finally:
        topk_topp_sampler.random_sample = one_by_one
    counts = torch.bincount(drawn.flatten(), minlength=5)
    expected = probs[0] * requests * steps
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-squared: once in a thousand
    again = torch.Generator("cuda").manual_seed(3)
    assert [draw(probs[:1].clone(), {0: again}).item() for _ in range(20)] == drawn[:20, 3].tolist()
