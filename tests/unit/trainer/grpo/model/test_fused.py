"""Liger's kernels are used where they compute no logits and no loss."""

import torch

from rl_agent.trainer.grpo.model import fused
from tests.integration.trainer.samples import tiny_policy


def test_of_ligers_kernels_none_that_computes_logits_or_a_loss_is_used(monkeypatch):
    kernels: dict[str, bool] = {}
    monkeypatch.setattr(fused, "_obstacle", lambda *_: "")
    monkeypatch.setattr(fused, "apply_liger_kernel", lambda _, wanted: kernels.update(wanted))
    assert fused.use_fused_kernels(tiny_policy().model, None, torch.device("cuda"))
    assert not fused.use_fused_kernels(tiny_policy().model, None, torch.device("cuda"), is_compiled=True)
    # By default Liger replaces the model's forward and PyTorch's cross entropy: these have to be named.
    assert kernels == {"cross_entropy": False, "fused_linear_cross_entropy": False}
