"""Every causal architecture of the installed transformers, tiny: how the trainer scores it, and if rightly.

    python -m tests.integration.trainer.model.sweep [NAME...]

prints the table of docs/reference/models.md, or what is found of each NAME.
"""

import logging
import re
import sys
import tempfile
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers import logging as transformers_logging
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.model import model_files
from rl_agent.trainer.grpo.model.buffers import forget_lengths
from rl_agent.trainer.grpo.model.lora import base_parameters
from rl_agent.trainer.grpo.model.parallel import Ranks, whole
from tests.integration.trainer.model.miniature import VOCABULARY, miniature
from tests.integration.trainer.model.test_policy import rows
from tests.integration.trainer.ranks import single_rank
from tests.integration.trainer.samples import after, beginning
from tests.integration.trainer.settings import trainer_settings

TOLERANCE = 1e-3
"""Bounds of log-probabilities, and of gradients in relation to their norm."""
_HEAD = {"head_dim": 128}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 48,
    "long_factor": [2.0 + index for index in range(48)],
    "original_max_position_embeddings": 4096,
}
_DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_EXPERTS = {"num_experts_per_tok": 6, "n_routed_experts": 64, "first_k_dense_replace": 1}

NEEDED: dict[str, dict[str, Any]] = {
    "deepseek_v2": _EXPERTS | {"topk_method": "greedy"},
    "dots1": _EXPERTS | {"n_shared_experts": 2},
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD | {"num_experts": 8, "moe_topk": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 3},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "num_hidden_layers": 4},
    "granite": {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "num_hidden_layers": 4},
    "ministral": _HEAD,
    "nemotron": _HEAD | {"num_key_value_heads": 8},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2}},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
    "reformer": {"is_decoder": True},
}
"""Settings without which an architecture is not what models of it are, or is none at all."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert as a decoder": ("bert", {"is_decoder": True}),
    "falcon with ALiBi": ("falcon", {"alibi": True, "num_attention_heads": 16, "hidden_size": 1024}),
    "gemma4 with shared keys": ("gemma4_text", {"num_kv_shared_layers": 10}),
    "llama with dynamic RoPE": ("llama", {"rope_parameters": _DYNAMIC_ROPE}),
    "llama with llama3 RoPE": ("llama", {"rope_parameters": _LLAMA3_ROPE}),
    "llama with YaRN": ("llama", {"rope_parameters": _YARN}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "phi3 with a window": ("phi3", {"sliding_window": 2047}),
    "phi3 with long RoPE": ("phi3", {"max_position_embeddings": 131_072, "rope_parameters": _LONG_ROPE}),
    "qwen2 with windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1},
    ),
    "roberta as a decoder": ("roberta", {"is_decoder": True}),
}
KINDS = ("at once", "at once up to a length", "one after the other", "refused", "not built", "wrong")
NAMES = [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS]


@dataclass(frozen=True)
class Outcome:
    """The outcome of an architecture."""

    kind: str
    """One of `KINDS`."""
    why: str = ""


class _Notices(logging.Handler):
    """The trainer's words on the speed of a model while it loads it."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.text += message if "slower than" in message else ""

    def __enter__(self) -> "_Notices":
        model_files._log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        model_files._log.removeHandler(self)


def sweep(name: str, ranks: Ranks, folder: Path) -> Outcome:
    """Make a tiny model, load it as the trainer does, and compare it with plain transformers."""
    model_type, changes = VARIANTS.get(name, (name, NEEDED.get(name, {})))
    try:
        can_recompute = _save(folder / "model", model_type, changes)
        expected = _plain(folder / "model")
    except Exception as error:  # transformers alone, so whatever it raises
        return Outcome("not built", f"{type(error).__name__}: {' '.join(str(error).split())}")
    parallel = {"activation_checkpointing": 0.5 if can_recompute else 0.0}
    with _Notices() as notices:
        try:
            policy = model_files.load_policy(
                trainer_settings(folder / "model", folder, parallel=parallel), ranks
            )
        except ConfigError as error:
            why = re.sub(rf"(the model at )?{re.escape(str(folder / 'model'))}:? ", "", str(error))
            return Outcome("refused", why)
    logprobs, _ = policy(pack(_rows(), ranks.device, shares=policy.shares_prefixes))
    logprobs.sum().backward()
    gradients = {n: whole(p.grad) for n, p in base_parameters(policy.model).items() if p.grad is not None}
    if wrong := _difference(logprobs.detach(), gradients, *expected):
        return Outcome("wrong", wrong)
    if "all at once" not in notices.text:
        return Outcome("at once", notices.text.partition("slower than once: ")[2])
    kind = KINDS[1] if "where one has more than" in notices.text else KINDS[2]
    return Outcome(kind, notices.text.split("slower than all at once: ")[1])


def _rows() -> list[Row]:
    """Five sequences, some longer than windows and contexts of tiny models, and a sibling of each."""
    segments = [row.segment for row in rows(5)]
    segments += [
        after(beginning(s, 2 * len(s) // 3), row.segment)
        for s, row in zip(segments, rows(9)[4:], strict=True)
    ]
    return [Row(replace(s, token_ids=s.token_ids % VOCABULARY), 1.0, 1, 0) for s in segments]


def _save(folder: Path, model_type: str, changes: dict[str, Any]) -> bool:
    """Write a model with random weights that say something; whether it can compute activations again."""
    torch.manual_seed(0)
    config = miniature(CONFIG_MAPPING[model_type](**changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    for module in model.modules():  # some architectures make the row of the padding zero as they load it
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            module.weight.data[module.padding_idx] = 0
    model.save_pretrained(folder)
    return bool(model.supports_gradient_checkpointing)


def _plain(folder: Path) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probabilities of the responses, one sequence at a time, and the gradient of their sum."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    parts = []
    for row in _rows():
        forget_lengths(model)
        tokens = torch.as_tensor(row.segment.token_ids).long()
        log_p = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        chosen = torch.as_tensor(row.segment.is_response.nonzero()[0])
        parts.append(log_p[chosen - 1, tokens[chosen]])
        parts[-1].sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return torch.cat(parts).detach(), gradients


def _difference(
    logprobs: torch.Tensor,
    gradients: dict[str, torch.Tensor],
    expected: torch.Tensor,
    expected_gradients: dict[str, torch.Tensor],
) -> str:
    """The problem in words; empty if there is none."""
    error = float((logprobs - expected).abs().max())
    if not error <= TOLERANCE:
        return f"log-probabilities are off by {error:.2g}"
    norm = sum(float(g.double().square().sum()) for g in expected_gradients.values()) ** 0.5
    for name, gradient in expected_gradients.items():
        mine = gradients.get(name, torch.zeros_like(gradient))
        error = float((mine - gradient).norm()) / norm
        if not error <= TOLERANCE:
            return f"the gradient of {name} is off by {error:.2g} of the whole"
    return ""


def table(outcomes: dict[str, Outcome]) -> str:
    """Rows of Markdown: how, why, which."""
    names = defaultdict(list)
    for name, outcome in outcomes.items():
        names[outcome.kind, "" if outcome.kind == "not built" else _cause(outcome.why)].append(name)
    lines = ["| scored | because | architectures |", "| --- | --- | --- |"]
    for (kind, why), members in sorted(names.items(), key=lambda item: (KINDS.index(item[0][0]), item[0])):
        lines.append(f"| {kind} | {why} | {', '.join(sorted(members))} |")
    return "\n".join(lines)


def _cause(why: str) -> str:
    """Leave out what differs from one architecture to the next."""
    claim = re.sub(r" ?\(.*|, so.*|; take.*|is a \w+, and ", "", why)
    return re.sub(r"models of type [\w-]+", "models", claim)


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    outcomes = {}
    with single_rank() as ranks:
        for name in names or NAMES:
            with tempfile.TemporaryDirectory() as folder:
                outcomes[name] = sweep(name, ranks, Path(folder))
            print(f"{name}: {outcomes[name].kind} {outcomes[name].why}", file=sys.stderr, flush=True)
    print(table(outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
