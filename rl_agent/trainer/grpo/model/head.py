"""Splits a model at its output matrix, and keeps what its own code does before and after it.

A causal model may transform its hidden states once more, add a bias, scale its logits or cap them. No formula
of ours stands for that: the model's own forward runs up to the output matrix (`inputs`), and from products
with that matrix to logits (`transform`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.model.logprobs import Transform


class OutputHead:
    """The output of a model, from its last hidden states to its logits."""

    def __init__(self, model: Any) -> None:
        """Raises ConfigError for a model whose output is no product with one matrix."""
        self._model = model
        matrix = model.get_output_embeddings()
        if type(matrix) is not nn.Linear:
            kind = "none" if matrix is None else f"a {type(matrix).__name__}"
            raise ConfigError(
                f"trainer=grpo cannot train models of type {model.config.model_type}: their output layer is "
                f"{kind}, where it needs a linear one"
            )
        self._matrix: nn.Linear = matrix
        self._outputs: dict[nn.Module, tuple[Any, int]] = {}
        """The kind of output and its width of each body that was called."""

    @property
    def weight(self) -> Tensor:
        return self._matrix.weight

    @property
    def bias(self) -> Tensor | None:
        return self._matrix.bias

    def inputs(self, **model_inputs: Any) -> Tensor:
        """Compute what the output matrix gets for these inputs: [1, tokens, size]."""
        caught: list[Tensor] = []

        def catch(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            caught.append(args[0])
            return (args[0][:, :0],)  # no logits are computed

        def note(body: nn.Module, _: Any, output: Any) -> None:
            self._outputs[body] = type(output), output[0].shape[-1]

        handles = [self._matrix.register_forward_pre_hook(catch)]
        handles += [body.register_forward_hook(note) for body in self._bodies if not self._outputs]
        try:
            self._model(**model_inputs)
        finally:
            for handle in handles:
                handle.remove()
        return caught[0]

    @cached_property
    def transform(self) -> Transform | None:
        """The map from products with the output matrix to logits, after `inputs`; None: the identity."""
        sample = torch.ones(1, len(self.weight), device=self.weight.device)
        with torch.no_grad():
            return None if self._logits(sample) is sample else self._logits

    @cached_property
    def _bodies(self) -> list[nn.Module]:
        """The modules that have the layers in them and not the output matrix, the outermost first."""
        layers = layers_of(self._model)
        modules = [(module, set(module.modules())) for module in self._model.modules()]
        return [module for module, parts in modules if layers in parts and self._matrix not in parts]

    def _logits(self, products: Tensor) -> Tensor:
        """Compute the model's logits without its body and the product."""
        body = next(body for body in self._bodies if body in self._outputs)
        kind, size = self._outputs[body]
        tokens = torch.zeros(1, len(products), dtype=torch.long, device=products.device)
        hidden = products.new_zeros(1, len(products), size, dtype=self.weight.dtype)
        output = (hidden,) if issubclass(kind, tuple) else kind(last_hidden_state=hidden)
        results: list[Tensor] = []

        def multiply(_: Tensor) -> Tensor:
            results.append(products[None])
            return results[0]

        with _computing(body, lambda *_, **__: output), _computing(self._matrix, multiply):
            logits: Tensor = self._model(input_ids=tokens, use_cache=False).logits
        return products if logits is results[0] else logits[0]


@contextmanager
def _computing(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let the module compute this meanwhile."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def layers_of(model: Any) -> nn.ModuleList:
    """Return the decoder's layers, in their order."""
    for part in (model.get_decoder(), model.base_model):
        if lists := [module for module in part.modules() if isinstance(module, nn.ModuleList)]:
            return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))
    return nn.ModuleList()
