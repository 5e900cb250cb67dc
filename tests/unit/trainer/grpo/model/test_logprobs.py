"""Log-probabilities in chunks are those of exact logits, and so are their gradients."""

import pytest
import torch

from rl_agent.trainer.grpo.model.logprobs import chosen_logprobs

SIZE, VOCABULARY, TOKENS = 64, 96, 200


def rivals() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, before and after a small step, whose two likeliest tokens have logits near 20."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCABULARY, SIZE, generator=generator).bfloat16()
    both = torch.linalg.lstsq(weight[:2].float(), torch.full((2, 1), 20.0)).solution.T
    hidden = both + 0.05 * torch.randn(TOKENS, SIZE, generator=generator)
    moved = hidden + 0.01 * torch.randn(TOKENS, SIZE, generator=generator)
    return hidden.bfloat16(), moved.bfloat16(), weight


def score(hidden: torch.Tensor, weight: torch.Tensor, **changes) -> torch.Tensor:
    options = {"temperature": 1.0, "chunk_tokens": 64} | changes
    return chosen_logprobs(hidden, weight, torch.zeros(len(hidden), dtype=torch.long), **options)[0]


def rounded(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Round as a bf16 product does."""
    return (hidden.double() @ weight.double().T).bfloat16().double().log_softmax(1)[:, 0]


def test_ratios_of_rival_tokens_are_those_of_exact_logits():
    hidden, moved, weight = rivals()
    exact, ratios, coarse = (
        (of(moved, weight) - of(hidden, weight)).double().exp()
        for of in (lambda h, w: score(h.double(), w.double()), score, rounded)
    )
    assert (hidden.double() @ weight.double().T)[:, :2].mean() == pytest.approx(20, abs=2)
    assert (ratios / exact - 1).abs().max() < 1e-4
    assert ((coarse / exact - 1).abs() > 0.05).double().mean() > 0.05  # so the test can tell


@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_are_those_of_exact_logits(with_bias):
    hidden, _, weight = rivals()
    biases = [torch.linspace(-1, 1, VOCABULARY)] if with_bias else []
    ours, exact = [], []
    for gradients, dtype in ((ours, torch.bfloat16), (exact, torch.float64)):
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in (hidden, weight, *biases)]
        scored = score(*leaves[:2], bias=leaves[2] if with_bias else None)
        scored[:50].sum().backward()
        gradients += [leaf.grad.double() for leaf in leaves]
    for mine, theirs in zip(ours, exact, strict=True):
        assert (mine - theirs).norm() / theirs.norm() < 0.005  # what rounding the result itself costs


@pytest.mark.parametrize("wanted", ["logprobs", "entropies", "both"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_through_a_cap_and_a_bias_agree_with_finite_differences(wanted, temperature):
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True)
    parts = {"logprobs": slice(0, 1), "entropies": slice(1, 2), "both": slice(0, 2)}[wanted]

    def scored(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor):
        options = {"temperature": temperature, "chunk_tokens": 3, "bias": b}
        options["transform"] = lambda z: 2 * torch.tanh(z / 2)
        return chosen_logprobs(h, w, torch.arange(7), **options)[parts]

    assert torch.autograd.gradcheck(scored, (hidden, weight, bias))


def test_a_vocabulary_is_made_precise_a_part_at_a_time(monkeypatch):
    hidden, _, weight = rivals()
    at_once = score(hidden, weight)
    monkeypatch.setattr("rl_agent.trainer.grpo.model.logprobs._UPCAST_WEIGHTS", 7 * SIZE)
    torch.testing.assert_close(score(hidden, weight), at_once, rtol=0, atol=1e-5)
