"""Computes log-probabilities and entropies of chosen tokens without holding the logits of all of them.

With 16,384 tokens and a vocabulary of 151,936 the logits alone would take 10 GB in fp32, and their gradient
as much again. Here a chunk of tokens at a time meets the vocabulary, in the forward pass and, computed once
more, in the backward pass. With logits z = f(W h + b) / T, p = softmax(z), and H the entropy of p:

    log p_y        d/dz = 1[y] − p
    H              d/dz = −p (log p + H)

Operands in half precision are multiplied into fp32. Rounded to bf16, logits from 16 to 32 are multiples of
0.125, and ratios of tokens that compete would be wrong by several percent.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Transform = Callable[[Tensor], Tensor]
"""A map from products with the output matrix to logits of the same shape."""

_UPCAST_WEIGHTS = 2**24
"""Weights that are held in fp32 at a time where the device cannot multiply into it."""


def chosen_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    chunk_tokens: int,
    bias: Tensor | None = None,
    transform: Transform | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the log-probability of each target and the entropy of each distribution, in fp32 or fp64.

    `hidden` is [tokens, size], `weight` [vocabulary, size]. Both results carry gradients.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChosenLogprobs.apply
    return apply(hidden, weight, bias, targets, transform, temperature, chunk_tokens)


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: Transform | None,
        temperature: float,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        precise = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs = hidden.new_empty(len(hidden), dtype=precise)
        entropies, log_totals = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _chunks(len(hidden), chunk_tokens):
            logits = _product(hidden[part], weight, bias)
            if transform is not None:
                logits = transform(logits).to(precise)
            if temperature != 1.0:
                logits = logits.div_(temperature)
            chosen = logits.gather(1, targets[part, None]).squeeze(1)
            log_p = logits.log_softmax(1)
            logprobs[part] = log_p.gather(1, targets[part, None]).squeeze(1)
            log_totals[part] = chosen - logprobs[part]
            entropies[part] = -log_p.exp().mul_(log_p).sum(1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropies, log_totals)
        ctx.transform, ctx.temperature, ctx.chunk_tokens = transform, temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies, log_totals = ctx.saved_tensors
        precise = entropies.dtype
        grad_hidden = torch.zeros_like(hidden)
        # Chunks are summed in fp32: half precision would lose the small ones. A frozen weight needs none.
        grad_weight = torch.zeros_like(weight, dtype=precise) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=precise) if ctx.needs_input_grad[2] else None
        by_logprob = torch.zeros_like(entropies) if by_logprob is None else by_logprob / ctx.temperature
        for part in _chunks(len(hidden), ctx.chunk_tokens):
            product = _product(hidden[part], weight, bias)
            log_p = product
            if ctx.transform is not None:
                with torch.enable_grad():
                    transformed = ctx.transform(product.requires_grad_()).to(precise)
                log_p = transformed.detach().clone()
            if ctx.temperature != 1.0:
                log_p = log_p.div_(ctx.temperature)
            log_p -= log_totals[part, None]
            if by_entropy is None:
                grad = log_p.exp_().mul_(-by_logprob[part, None])
            else:
                p = log_p.exp()
                slope = -by_entropy[part, None] / ctx.temperature
                grad = log_p.add_(entropies[part, None]).mul_(slope).sub_(by_logprob[part, None]).mul_(p)
            grad.scatter_add_(1, targets[part, None], by_logprob[part, None])
            if ctx.transform is not None:
                (grad,) = torch.autograd.grad(transformed, product, grad)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(hidden.dtype)
            grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                grad_weight += grad.T @ hidden[part]
        of_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        of_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, of_weight, of_bias, None, None, None, None


def _chunks(tokens: int, chunk_tokens: int) -> Iterator[slice]:
    return (slice(start, start + chunk_tokens) for start in range(0, tokens, chunk_tokens))


def _product(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute W h + b; of half precision in fp32."""
    if hidden.dtype not in (torch.bfloat16, torch.float16):
        product = hidden @ weight.T
    elif hidden.is_cuda:
        product = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    else:
        product = _upcast_product(hidden, weight)
    return product if bias is None else product.add_(bias)


def _upcast_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Multiply operands that are made fp32 a part of the vocabulary at a time."""
    product = hidden.new_empty(len(hidden), len(weight), dtype=torch.float32)
    precise = hidden.float()
    for part in _chunks(len(weight), max(1, _UPCAST_WEIGHTS // weight.shape[1])):
        torch.mm(precise, weight[part].float().T, out=product[:, part])
    return product
