"""Weights are arranged again on a CPU around a load, with layers like vLLM's."""

from types import SimpleNamespace

import pytest
import torch

from rl_agent.weights.load.repacking import repacking
from tests.integration.weights.fingerprints import fingerprint, served


class Head(torch.nn.Module):
    """Its weight is the embedding's; its kernel has another form of it."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.quant_method = SimpleNamespace(
            process_weights_after_loading=Head.pack, apply=lambda layer, rows, bias: layer.cpu_linear(rows)
        )
        self.pack()

    def pack(self):
        packed = self.weight.detach().clone()
        self.cpu_linear = lambda rows: rows @ packed.T


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.quant_method = SimpleNamespace(moe_kernel="made for what was there")


def model():
    embedding = torch.nn.Embedding(7, 8)
    return torch.nn.ModuleList([embedding, Head(embedding.weight), Experts(), torch.nn.Linear(8, 8)])


def test_a_tied_head_uses_loaded_weights_and_its_fingerprint_shows_it():
    layers = model()
    prints = [fingerprint(served(layers))]
    new = torch.randn(7, 8)
    layers[0].weight.data.copy_(new)  # as vLLM loads it
    prints.append(fingerprint(served(layers)))
    with repacking(layers, torch.device("cpu")):
        layers[0].weight.data.copy_(new)
    rows = torch.randn(3, 8)
    torch.testing.assert_close(layers[1].cpu_linear(rows), rows @ new.T)
    prints.append(fingerprint(served(layers)))
    assert len(set(prints)) == 3


@pytest.mark.parametrize(("device", "kernel"), [("cpu", None), ("cuda", "made for what was there")])
def test_kernels_of_experts_are_made_anew_on_a_cpu_alone(device, kernel):
    layers = model()
    with repacking(layers, torch.device(device)):
        assert layers[2].quant_method.moe_kernel == kernel


def test_a_load_that_fails_is_not_hidden():
    with pytest.raises(RuntimeError, match="no such"), repacking(model(), torch.device("cpu")):
        raise RuntimeError("no such parameter")
