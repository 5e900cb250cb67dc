"""A fingerprint sees every change of what is served."""

from types import SimpleNamespace

import torch

from tests.integration.weights.fingerprints import fingerprint, served


def test_a_fingerprint_sees_changed_bits_and_swaps_but_no_order_of_names():
    state = {"a": torch.arange(10.0), "b": torch.zeros(3), "c": torch.zeros(0)}
    same = fingerprint(reversed(state.items()))
    assert fingerprint(state.items()) == same
    bits = state["a"].clone()
    bits.view(torch.int32)[4] ^= 1
    swapped = state["a"][torch.tensor([1, 0, *range(2, 10)])]
    for changed in ({"a": bits}, {"a": swapped}, {"b": torch.tensor([0.0, -0.0, 0.0])}):
        assert fingerprint((state | changed).items()) != same


class PackedLinear(torch.nn.Module):
    """Like a layer of vLLM on a CPU: its weight is where only its method finds it."""

    def __init__(self, packed):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(0))
        self.input_size, self.params_dtype = packed.shape[1], packed.dtype
        self.quant_method = SimpleNamespace(apply=lambda layer, rows, bias: rows @ packed.T)


def test_a_fingerprint_sees_weights_that_are_packed_away():
    def of(weight):
        return fingerprint(served(torch.nn.Sequential(PackedLinear(weight), torch.nn.Linear(3, 2))))

    torch.manual_seed(0)
    with torch.random.fork_rng():
        weight = torch.randn(5, 8)
        changed = weight.clone()
        changed[3, 4] *= 1.01
    prints = []
    for state in (weight, weight.clone(), changed):
        torch.manual_seed(1)
        prints.append(of(state))
    assert prints[0] == prints[1] != prints[2]
