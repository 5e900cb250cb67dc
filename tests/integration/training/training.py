"""Helpers of the tests of training: right answers to train on, the verbs of an update, the served model."""

import json
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

from rl_agent.config.plan import Plan
from rl_agent.paths import PROJECT_ROOT
from tests.integration.tiny_model import prompt_text
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard


def collect(plan: Plan, iteration: int, count: int) -> None:
    """A finished shard of right answers, as the engine would write them."""
    tokenizer = Tokenizer.from_file(str(Path(plan.config.model.base_model) / "tokenizer.json"))
    episodes = []
    for index in range(count):
        question = f"What is {index % 30} + 7?"
        prompt = tokenizer.encode(prompt_text(question), add_special_tokens=False).ids
        answer = f"{index % 30 + 7}<|im_end|>"
        step = make_step(answer, observation=question, prompt=tuple(prompt), tokenizer=tokenizer)
        episodes.append(make_trajectory(index, iteration=iteration, steps=(step,)))
    write_shard(plan.paths.shard("train", iteration), make_header(iteration), *episodes)


def run_verb(verb: str, plan: Plan, iteration: int) -> str:
    path = plan.paths.log_path / "plan.json"
    plan.write(path)
    argv = [sys.executable, "-m", "rl_agent.cli", verb, "--plan", str(path), "--iteration", str(iteration)]
    done = subprocess.run(argv, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def update(plan: Plan, iteration: int) -> tuple[Path, list[dict]]:
    """Run the three verbs; returns the served folder and the log lines of the steps."""
    run_verb("prepare-update", plan, iteration)
    run_verb("train", plan, iteration)
    published = dict(line.split("=", 1) for line in run_verb("publish", plan, iteration).splitlines())
    assert published["weight_version"] == str(iteration)
    log = (plan.paths.training_dir(iteration) / "trainer_log.jsonl").read_text().splitlines()
    return Path(published["path"]), [line for line in map(json.loads, log) if "loss" in line]


def optimizer_steps(folder: Path) -> set[int]:
    import torch

    state = torch.load(folder / "trainer" / "optimizer.pt", weights_only=True)
    return {int(entry["step"]) for entry in state["state"].values()}


def tensors_of(folder: Path) -> dict:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def assert_serves(folder: Path, base: Path) -> None:
    """transformers loads it; its tokenizer and chat template are the base model's."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    messages = [{"role": "user", "content": "What is 3 + 7?"}]
    old, new = AutoTokenizer.from_pretrained(base), AutoTokenizer.from_pretrained(folder)
    assert old.apply_chat_template(messages) == new.apply_chat_template(messages)
    assert old.get_vocab() == new.get_vocab()
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**new("What is", return_tensors="pt", return_token_type_ids=False)).logits
    assert bool(torch.isfinite(logits).all())
    assert not list(folder.glob("*.pt")) and not list(folder.glob("*.bin"))
    start, end = tensors_of(base), tensors_of(folder)
    assert start.keys() == end.keys()
    assert any((start[name] != end[name]).any() for name in start)
