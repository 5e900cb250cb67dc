"""The agents of scripts/examples/agents as they are: with an engine that says what it is told, and trained.

`RL_AGENT_AGENTS_PYTHON` is a Python with langgraph, langchain-openai, openai-agents and smolagents[openai],
whose pins clash with the lock's.
"""

import json
import os
import signal

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.env.agent.environment import AgentEnvironment
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import Policy
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.types import Status
from tests.integration.env.agent.programs import ADD as ADD_SCHEMA
from tests.integration.pool.test_run_pool import engines, join_early
from tests.integration.real_run import ENGINE_ARGS, Run
from tests.integration.runs.test_tools_run import make_model
from tests.support.tiny_chat import tiny_chat
from tests.unit.chat.tool_templates import HERMES
from tests.unit.rollout.collector.test_agent_chats import Talking, segments_of_steps
from tests.unit.rollout.episodes import SAMPLING, make_setup, make_spec

PYTHON = os.environ.get("RL_AGENT_AGENTS_PYTHON", "")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_AGENTS_PYTHON names no Python with the agents"),
]


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ADD = call("add", '{"a": 2, "b": 2}')


@pytest.mark.parametrize(
    ("example", "response", "begins"),
    [
        ("langgraph_agent", (f"I add. {ADD}", "4"), ["", ""]),
        ("openai_agents_agent", (call("transfer_to_calculator", "{}"), ADD, "4"), ["", "new", ""]),
        ("smolagents_agent", (ADD, call("final_answer", '{"answer": "4"}')), ["", "edited"]),
    ],
)
async def test_an_example_is_recorded_as_the_engine_sampled_it(example, response, begins):
    engine, chat = Talking(*response), tiny_chat(HERMES)
    command = [PYTHON, str(PROJECT_ROOT / "scripts" / "examples" / "agents" / f"{example}.py")]
    setup = make_setup(
        lambda kind: AgentEnvironment(command=command, reward="none"),
        policy=Policy(engine, EngineGate(8), chat, SAMPLING),
        step_timeout_s=300.0,
        episode_timeout_s=300.0,
    )
    try:
        trajectory = await Episode(make_spec(), setup).run()
    finally:
        await AgentEnvironment.close_shared()
    assert trajectory.status is Status.COMPLETED, trajectory.failure
    assert trajectory.last_observation == "4"
    assert [step.begins for step in trajectory.steps] == begins
    trained = [text for _, texts in segments_of_steps(trajectory.steps, chat) for text in texts]
    assert trained == [f"{text}<|im_end|>" for text in response]


LONGEST, TASKS, SIBLINGS = 16_384, 8, 3


def make_long_model(folder):
    """A model that knows a call and an answer by heart, and has room for the prompts of any agent."""
    config = make_model(folder, [ADD_SCHEMA]) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": LONGEST}))
    return folder


@pytest.mark.vllm
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("example", ["langgraph_agent", "openai_agents_agent", "smolagents_agent"])
def test_grpo_trains_an_example_though_engine_and_manager_are_killed(example, tmp_path):
    port, command = free_port(), f"[{PYTHON},{PROJECT_ROOT}/scripts/examples/agents/{example}.py]"
    with Run(tmp_path, make_long_model(tmp_path / "model")) as run:
        for split in ("train", "test"):
            tasks = (
                {"task_id": str(n), "prompt": f"What is {n} + 25?", "answer": "42"} for n in range(TASKS)
            )
            lines = "".join(f"{json.dumps(task)}\n" for task in tasks)
            (tmp_path / "data" / f"{split}.jsonl").write_text(lines)
        places = {"env_config.server_size": 8, "rollout.max_vllm_sessions": 8}  # an engine has four
        run.change({"engine.max_model_len": LONGEST, "env_config.train_tasks_rollout_size": TASKS} | places)
        manager, long = f"http://127.0.0.1:{port}", ENGINE_ARGS.replace("256", str(LONGEST), 1)
        joined = join_early(run, manager, "spot", engine_args=long)
        process = run.start(
            "--rl-phase", "both", "--no-final-eval", "--eval-interval", "2", "--max-iterations", "2",
            "trainer=grpo_cpu", "pool=elastic", f"pool.port={port}", f"rollout.group_size={SIBLINGS}",
            "trainer.mini_batches=1", "env_config.default_env=agent", "rollout.step_timeout_s=300",
            f"+env_config.kwargs.agent.command={command}", "+env_config.kwargs.agent.reward=math",
            "+env_config.kwargs.agent.crash_reward=0",
        )  # fmt: skip
        run.wait_for_episodes(process, 1)
        run.wait_until(lambda: engines(manager).get("spot", {}).get("running"), process, 600)
        os.killpg(joined.pid, signal.SIGKILL)
        joined.wait(10)
        killed_at = len(run.finished())
        os.killpg(run.leader("manager"), signal.SIGKILL)
        assert killed_at < TASKS * SIBLINGS, "the manager was to be killed in mid-rollout"
        assert process.wait(900) == 0, (tmp_path / "output").read_text()[-4000:]

        assert "the pool's manager died: restarting it" in (tmp_path / "output").read_text()
        steps = [record for record in metrics.read(run.paths.metrics) if "update_step" in record]
        assert sum(step["trainer/episodes"] for step in steps) == 2 * TASKS * SIBLINGS
        # The trainer's logprobs of the recorded tokens are those with which the engines sampled them.
        assert max(step["trainer/behaviour_kl"] for step in steps) < 0.01
        for iteration in (1, 2):
            episodes = list(read_iteration(run.paths, "train", iteration, TRAJECTORY))
            assert len({episode.key for episode in episodes}) == len(episodes) == TASKS * SIBLINGS
            assert {episode.status for episode in episodes} == {Status.COMPLETED}
            assert all(step.generation.spans for episode in episodes for step in episode.steps)
