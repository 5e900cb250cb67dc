"""Log-probabilities and entropies of chosen tokens, without ever holding the logits of all of them.

With 16,384 tokens and a vocabulary of 151,936 the logits alone would take 10 GB in fp32, and their gradient
as much again. Here a chunk of tokens at a time meets the vocabulary, in the forward pass and, computed once
more, in the backward pass. With logits z = W h / T, p = softmax(z), and H the entropy of p:

    log p_y        d/dz = 1[y] − p
    H              d/dz = −p (log p + H)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def chosen_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """(log-probability of each target, entropy of each distribution), both fp32 (fp64 for fp64 input).

    `hidden` is [tokens, size], `weight` [vocabulary, size]. Both results carry gradients.
    """
    return _ChosenLogprobs.apply(hidden, weight, targets, temperature, chunk_tokens)


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        precise = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs = hidden.new_empty(len(hidden), dtype=precise)
        entropies, log_totals = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _chunks(len(hidden), chunk_tokens):
            logits = _logits(hidden[part], weight, temperature, precise)
            chosen = logits.gather(1, targets[part, None]).squeeze(1)
            log_p = logits.log_softmax(1)
            logprobs[part] = log_p.gather(1, targets[part, None]).squeeze(1)
            log_totals[part] = chosen - logprobs[part]
            entropies[part] = -log_p.exp().mul_(log_p).sum(1)
        ctx.save_for_backward(hidden, weight, targets, entropies, log_totals)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, entropies, log_totals = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden)
        # Chunks are summed in fp32: half precision would lose the small ones. A frozen weight needs none.
        is_trained = ctx.needs_input_grad[1]
        grad_weight = torch.zeros_like(weight, dtype=entropies.dtype) if is_trained else None
        by_logprob = torch.zeros_like(entropies) if by_logprob is None else by_logprob / ctx.temperature
        for part in _chunks(len(hidden), ctx.chunk_tokens):
            log_p = _logits(hidden[part], weight, ctx.temperature, entropies.dtype)
            log_p -= log_totals[part, None]
            if by_entropy is None:
                grad = log_p.exp_().mul_(-by_logprob[part, None])
            else:
                p = log_p.exp()
                slope = -by_entropy[part, None] / ctx.temperature
                grad = log_p.add_(entropies[part, None]).mul_(slope).sub_(by_logprob[part, None]).mul_(p)
            grad.scatter_add_(1, targets[part, None], by_logprob[part, None])
            grad = grad.to(hidden.dtype)
            grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                grad_weight += grad.T @ hidden[part]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


def _chunks(tokens: int, chunk_tokens: int) -> Iterator[slice]:
    return (slice(start, start + chunk_tokens) for start in range(0, tokens, chunk_tokens))


def _logits(hidden: Tensor, weight: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    logits = (hidden @ weight.T).to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)
