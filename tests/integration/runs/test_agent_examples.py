"""The agents of scripts/examples/agents as they are, with an engine that says what it is told.

`RL_AGENT_AGENTS_PYTHON` is a Python with langgraph, langchain-openai, openai-agents and smolagents[openai],
whose pins clash with the lock's.
"""

import os

import pytest

from rl_agent.env.agent.environment import AgentEnvironment
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import Policy
from rl_agent.types import Status
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
    ("example", "said", "begins"),
    [
        ("langgraph_agent", (f"I add. {ADD}", "4"), ["", ""]),
        ("openai_agents_agent", (call("transfer_to_calculator", "{}"), ADD, "4"), ["", "new", ""]),
        ("smolagents_agent", (ADD, call("final_answer", '{"answer": "4"}')), ["", "edited"]),
    ],
)
async def test_an_example_is_recorded_as_the_engine_sampled_it(example, said, begins):
    engine, chat = Talking(*said), tiny_chat(HERMES)
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
    assert trained == [f"{text}<|im_end|>" for text in said]
