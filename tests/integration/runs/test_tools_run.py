"""A real run whose agent calls the tools of a real MCP server, by a real vLLM and a tiny model taught to.

The model is as base models are: its eos token is none that its chat template writes.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tool_formats import Schema
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.env.tools.environment import ToolsEnvironment
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.types import Observation, Task
from tests.integration.real_run import Run
from tests.integration.runs.taught_model import teach

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from tiny_tokenizer import save_tokenizer, train_tokenizer

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1200)]

TOOLS = PROJECT_ROOT / "data" / "tools"
SERVER = [sys.executable, str(TOOLS / "calculator.py")]
TASK = Task("sum", "What is 17 + 25?", "tools", "easy", "42")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call>'
ANSWER = "The sum is 42."


async def schemas():
    try:
        return await ToolsEnvironment.tools(TASK, mcp={"command": SERVER})
    finally:
        await ToolsEnvironment.close_shared()


def make_model(folder: Path, tools: Sequence[Schema] = ()) -> Path:
    """Teach one conversation by heart: the question, a call, what the tool says, the answer."""
    folder.mkdir(parents=True)
    tools = tools or asyncio.run(schemas())
    template = (TOOLS / "chat_template.jinja").read_text(encoding="utf-8")
    save_tokenizer(
        train_tokenizer([TASK.prompt, CALL, ANSWER, template, json.dumps(tools)]), folder, max_length=1024
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    chat = ChatTokenizer.load(str(folder), {})
    (end,) = (token for token in chat.eos_token_ids if chat.decode([token]) == "<|im_end|>")
    prompt = chat.start(None, Observation(TASK.prompt), tools)
    call, answer = ([*chat._encode(text), end] for text in (CALL, ANSWER))
    between = chat.extend(call, Observation("42"), is_of_tool=True)
    teach(
        folder,
        lambda: [(prompt, call), ([*prompt, *call, *between], answer)],
        vocab_size=chat._tokenizer.get_vocab_size(),
        end=end,
        max_length=1024,
    )
    _end_with(folder, "<|endoftext|>", chat._tokenizer.token_to_id("<|endoftext|>"))
    return folder


def _end_with(folder: Path, eos_token: str, token_id: int) -> None:
    """Make this the only eos token that the model's files name."""
    changes = {"tokenizer_config.json": {"eos_token": eos_token}}
    changes |= {name: {"eos_token_id": token_id} for name in ("config.json", "generation_config.json")}
    for name, change in changes.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_an_agent_calls_a_servers_tool_and_answers_with_its_result(tmp_path):
    with Run(tmp_path, make_model(tmp_path / "model")) as run:
        line = {
            "task_id": TASK.task_id,
            "prompt": TASK.prompt,
            "answer": "42",
            "env": "tools",
            "difficulty": "easy",
        }
        (tmp_path / "data" / "train.jsonl").write_text(json.dumps(line) + "\n")
        run.change({"engine.max_model_len": 1024, "policy_config.temperature": 0})
        command = ",".join(SERVER)
        process = run.start(
            "--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1",
            "policy_config.action_format=tool_calls", f"+env_config.kwargs.tools.mcp.command=[{command}]",
        )  # fmt: skip
        assert process.wait(400) == 0, (tmp_path / "output").read_text()[-4000:]
        run.seconds_until_gone(process)  # the server too

        (trajectory,) = read_shard(run.paths.shard("train", 1))[1]
        first, second = trajectory.steps
        assert json.loads(first.action) == {"name": "add", "arguments": {"a": 17, "b": 25}}
        assert second.observation.text == "42"
        assert [step.generation.finish_reason for step in trajectory.steps] == ["stop", "stop"]
        assert (second.action, trajectory.reward) == (ANSWER, 1.0)
        chat = ChatTokenizer.load(str(tmp_path / "model"), {})
        assert chat.decode(second.prompt_token_ids) == (
            "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        numbers = json.loads(run.paths.metrics.read_text().splitlines()[-1])
        assert numbers["train/invalid_share"] == 0
        output = (tmp_path / "output").read_text()
        assert "writes calls as hermes" in output
        assert "its turns end with <|im_end|>, not an eos token of it" in output


LAKE = {
    "task_id": "lake",
    "prompt": "Walk to the goal.",
    "env": "gymnasium",
    "env_id": "FrozenLake-v1",
    "seed": 1,
}
OF_MCP = {"task_id": TASK.task_id, "prompt": TASK.prompt, "answer": "42", "env": "tools"}


@pytest.mark.parametrize("task", [OF_MCP, LAKE], ids=["MCP server", "Gymnasium"])
def test_grpo_trains_on_turns_with_a_protocols_environment(task, tmp_path):
    with Run(tmp_path, make_model(tmp_path / "model")) as run:
        for split in ("train", "test"):
            (tmp_path / "data" / f"{split}.jsonl").write_text(json.dumps(task) + "\n")
        words = ["policy_config.action_format=tool_calls"] if task is OF_MCP else []
        command = ",".join(SERVER)
        run.change({"engine.max_model_len": 1024, "+env_config.kwargs.tools.mcp.command": f"[{command}]"})
        process = run.start(
            "--rl-phase", "both", "--no-final-eval", "--eval-interval", "2", "--max-iterations", "2",
            "trainer=grpo_cpu", "pool=elastic", f"pool.port={free_port()}", "rollout.group_size=8",
            "trainer.mini_batches=1", "env_config.train_difficulty_max_steps.easy=4", *words,
        )  # fmt: skip
        assert process.wait(1000) == 0, (tmp_path / "output").read_text()[-4000:]
        run.seconds_until_gone(process)
        steps = [record for record in metrics.read(run.paths.metrics) if "update_step" in record]
        assert sum(step["trainer/episodes"] for step in steps) == 16
        # The trainer's logprobs of the recorded tokens are those with which the engine sampled them.
        assert max(step["trainer/behaviour_kl"] for step in steps) < 0.01
        for iteration in (1, 2):
            episodes = list(read_iteration(run.paths, "train", iteration, TRAJECTORY))
            assert len(episodes) == 8 and all(episode.reward is not None for episode in episodes)
            assert max(len(episode.steps) for episode in episodes) > 1
