"""Models that vLLM's loader fills where they are, and models whose layers process their weights."""

from types import SimpleNamespace

import pytest
import torch

from rl_agent.weights.load.in_place import is_loaded_in_place

CUDA = torch.device("cuda")


class UnquantizedLinearMethod:
    pass


class Fp8LinearMethod:
    pass


class AttentionImplBase:
    def process_weights_after_loading(self, dtype):
        """Do nothing."""


class FlashAttentionImpl(AttentionImplBase):
    pass


class FlashInferImpl(AttentionImplBase):
    def process_weights_after_loading(self, dtype):
        """Keep the sinks in fp32."""


class Attention(torch.nn.Module):
    def __init__(self, impl):
        super().__init__()
        self.impl = impl

    def process_weights_after_loading(self, dtype):
        self.impl.process_weights_after_loading(dtype)


class MLAAttention(Attention):
    pass


def model(*layers):
    linear = torch.nn.Linear(2, 2)
    linear.quant_method = UnquantizedLinearMethod()
    return torch.nn.Sequential(linear, torch.nn.LayerNorm(2), *layers)


def test_layers_without_a_process_are_loaded_in_place_on_a_gpu_alone():
    plain = model(Attention(FlashAttentionImpl()))
    assert is_loaded_in_place(plain, CUDA)
    assert not is_loaded_in_place(plain, torch.device("cpu"))


@pytest.mark.parametrize(
    "layer",
    [
        Attention(FlashInferImpl()),
        Attention(SimpleNamespace()),
        MLAAttention(FlashAttentionImpl()),
        torch.nn.Identity(),
    ],
    ids=["attention keeps a copy", "unknown attention", "absorbed projections", "quantized"],
)
def test_a_layer_that_processes_its_weights_is_made_anew(layer):
    if isinstance(layer, torch.nn.Identity):
        layer.quant_method = Fp8LinearMethod()
    assert not is_loaded_in_place(model(layer), CUDA)
