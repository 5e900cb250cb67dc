"""Packed, chunked scoring of a tiny Qwen3 against plain transformers, one sequence at a time."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from rl_agent.paths import PROJECT_ROOT
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.model.logprobs import chosen_logprobs
from tests.integration.trainer.samples import random_groups, random_segment, tiny_policy

CPU = torch.device("cpu")


def rows(count: int, *, seed: int = 0) -> list[Row]:
    generator = np.random.default_rng(seed)
    return [Row(random_segment(generator, turns=1 + i % 3), 1.0, 1, i) for i in range(count)]


def one_by_one(policy, all_rows: list[Row], temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies by transformers' own attention and full logits."""
    policy.model.set_attn_implementation("sdpa")
    logprobs, entropies = [], []
    for row in all_rows:
        token_ids = torch.as_tensor(row.segment.token_ids).long()
        logits = policy.model(input_ids=token_ids[None], use_cache=False).logits[0] / temperature
        log_p = logits.log_softmax(-1)
        chosen = torch.as_tensor(np.flatnonzero(row.segment.is_response))
        logprobs.append(log_p[chosen - 1, token_ids[chosen]])
        entropies.append(-(log_p.exp() * log_p).sum(-1)[chosen - 1])
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_logprobs_and_entropies_equal_those_of_single_sequences(temperature):
    policy = tiny_policy(temperature=temperature)
    with torch.no_grad():
        logprobs, entropies = policy(pack(rows(7), CPU))
        expected_logprobs, expected_entropies = one_by_one(tiny_policy(), rows(7), temperature)
    assert logprobs.std() > 0.1  # the model tells tokens apart
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("activation_checkpointing", [0.0, 0.5, 1.0])
def test_packed_gradients_equal_those_of_one_sequence_at_a_time(activation_checkpointing, tied):
    policy = tiny_policy(activation_checkpointing=activation_checkpointing, tied=tied)
    torch.manual_seed(1)
    weights = torch.randn(2, sum(int(row.segment.is_response.sum()) for row in rows(5)))
    packed = gradients(policy, policy(pack(rows(5), CPU)), weights)
    plain = tiny_policy(tied=tied)
    expected = gradients(plain, one_by_one(plain, rows(5)), weights)
    for name, gradient in packed.items():
        difference = (gradient - expected[name]).norm() / expected[name].norm()
        assert difference < 1e-5, f"{name}: {difference}"


@pytest.mark.parametrize("activation_checkpointing", [0.0, 1.0])
def test_shared_prefixes_give_the_numbers_of_single_sequences(activation_checkpointing):
    samples = [s for group in random_groups(3, prompt=40) for s in group.samples]
    segments = [segment for sample in samples for segment in sample.segments]
    all_rows = [Row(segment, 1.0, 1, 0) for segment in [*segments, segments[0]]] + rows(3)
    batch = pack(all_rows, CPU, shares=True)
    assert batch.input_ids.shape[1] < 0.65 * sum(len(row.segment) for row in all_rows)
    torch.manual_seed(1)
    weights = torch.randn(2, len(batch.targets), dtype=torch.float64)
    policy = tiny_policy(activation_checkpointing=activation_checkpointing).double()
    plain = tiny_policy().double()
    outputs, expected_outputs = policy(batch), one_by_one(plain, all_rows)
    torch.testing.assert_close(torch.stack(outputs), torch.stack(expected_outputs), rtol=0, atol=1e-9)
    expected = gradients(plain, expected_outputs, weights)
    for name, gradient in gradients(policy, outputs, weights).items():
        # Its norms compute in fp32 all the same.
        assert (gradient - expected[name]).norm() / expected[name].norm() < 1e-6, name


def gradients(policy, outputs, weights) -> dict[str, torch.Tensor]:
    policy.zero_grad()
    (torch.stack(outputs) * weights).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}


def test_an_empty_micro_batch_gives_every_parameter_a_gradient_of_zero():
    policy = tiny_policy()
    logprobs, _ = policy(pack([], CPU))
    logprobs.sum().backward()
    assert all(not parameter.grad.any() for parameter in policy.parameters())


MEASURE_PEAKS = """
import json, os, re, sys, torch
from rl_agent.trainer.grpo.model.logprobs import chosen_logprobs

def peak_kib():  # not `ru_maxrss`, which begins with what the parent had when it forked
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

def measure(tokens, size, chunk_tokens, is_trained):
    hidden = torch.randn(tokens, size, requires_grad=True)
    weight = torch.randn(100_000, size, requires_grad=is_trained)
    targets = torch.randint(0, 100_000, (tokens,))
    before = peak_kib()
    logprobs, _ = chosen_logprobs(hidden, weight, targets, temperature=1.0, chunk_tokens=chunk_tokens)
    logprobs.sum().backward()
    print(peak_kib() - before, flush=True)

torch.manual_seed(0)
for case in json.loads(sys.argv[1]):  # each in a process of its own, for a peak never falls
    if not (child := os.fork()):
        measure(*case)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def peaks_mib(*cases: tuple[int, int, int, bool]) -> list[float]:
    """Return the peak memory of each case: tokens, hidden size, tokens a chunk, is the matrix trained."""
    argv = [sys.executable, "-c", MEASURE_PEAKS, json.dumps(cases)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=PROJECT_ROOT, env=environ, capture_output=True, text=True, check=True, timeout=100
    )
    return [int(line) / 1024 for line in done.stdout.split()]


def test_chunks_and_a_frozen_output_matrix_save_their_memory():
    """512 tokens of a vocabulary of 100,000 have 195 MiB of logits in fp32, 100,000 x 256 weights 98 MiB."""
    whole, chunked, frozen, trained = peaks_mib(
        (512, 16, 512, True), (512, 16, 16, True), (16, 256, 16, False), (16, 256, 16, True)
    )
    logits_mib = 512 * 100_000 * 4 / 2**20
    assert whole > 2 * logits_mib  # some copies are needed
    assert chunked < min(0.4 * whole, logits_mib)
    assert trained > frozen + 75


def test_a_frozen_output_matrix_gives_hidden_states_the_same_gradient():
    gradients_found = []
    for is_trained in (True, False):
        torch.manual_seed(0)
        hidden = torch.randn(7, 5, requires_grad=True)
        weight = torch.randn(11, 5, requires_grad=is_trained)
        scored = chosen_logprobs(hidden, weight, torch.arange(7), temperature=1.0, chunk_tokens=3)
        (scored[0] + scored[1]).sum().backward()
        gradients_found.append(hidden.grad)
    assert torch.equal(*gradients_found)
