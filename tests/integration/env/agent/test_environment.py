"""Programs with OpenAI's client as agents of real episodes, with an engine that says what it is told."""

import asyncio
import os
import socket
from dataclasses import replace

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.env.agent.environment import AgentEnvironment
from rl_agent.env.math import MathEnvironment
from rl_agent.env.reward_function import environment_of
from rl_agent.errors import EngineError, EnvironmentUnavailable, RetryLater
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import Policy
from rl_agent.types import Status
from tests.integration.env.agent.programs import RESPONSES_LOOP, TOOL_LOOP, page_client, program
from tests.support.tiny_chat import tiny_chat
from tests.unit.chat.tool_templates import HERMES
from tests.unit.rollout.collector.test_agent_chats import Talking
from tests.unit.rollout.episodes import SAMPLING, make_setup, make_spec

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'
ASK_ONCE = """
import json, os, urllib.error, urllib.request

def post(path, body):
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), key)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)

def ask(text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return post("/chat/completions", body)["choices"][0]["message"]["content"]

"""
"""A client that starts in a tenth of the time of OpenAI's own."""


@pytest.fixture(autouse=True)
async def closed():
    yield
    await AgentEnvironment.close_shared()


async def run(folder, text, *responses, engine=None, words="", max_steps=10, kinds=None, log=None, **kwargs):
    engine = engine or Talking(*(responses or ("4",)))
    policy = Policy(engine, EngineGate(8), tiny_chat(HERMES), SAMPLING)
    settings = {"command": f"{program(folder, text)} {words}", **kwargs}

    def create(kind):
        return (kinds or {})[kind]() if kind != "fake" else AgentEnvironment(**settings)

    setup = make_setup(
        create,
        policy=policy,
        episode_timeout_s=30.0,
        step_timeout_s=20.0,
        scorer_of=lambda kind: AgentEnvironment.scorer(**settings),
        agent_log=(log if log is not None else []).append,
    )
    return await Episode(make_spec(max_steps=max_steps), setup).run()


@pytest.mark.parametrize("words", ["", "--stream"], ids=["whole", "streamed"])
async def test_an_unmodified_agent_with_tools_becomes_an_episode(tmp_path, words):
    log = []
    engine = Talking(CALL, "4")
    trajectory = await run(tmp_path, TOOL_LOOP, engine=engine, words=words, log=log)

    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 1.0), trajectory.failure
    first, second = trajectory.steps
    assert engine.contexts[1] == [
        *first.prompt_token_ids, *first.generation.token_ids, *second.prompt_token_ids
    ]  # fmt: skip
    assert [step.generation.text for step in trajectory.steps] == [CALL, "4"]
    assert first.action == '{"name": "add", "arguments": {"a": 2, "b": 2}}'
    assert second.observation.text == "4"
    assert second.reward == 1.0
    assert '"name": "add"' in tiny_chat().decode(first.prompt_token_ids)
    assert trajectory.last_observation.splitlines()[0] == "4"
    assert "thinking aloud" in log[0]


async def test_a_crash_costs_an_attempt_and_names_its_last_line(tmp_path):
    text = f"{ASK_ONCE}ask('a')\nimport os, sys\nmark = {str(tmp_path / 'mark')!r}\n" + (
        "if not os.path.exists(mark):\n    open(mark, 'w')\n    raise KeyError('lost my keys')\nprint(1)\n"
    )
    policy = Policy(Talking("4"), EngineGate(8), tiny_chat(HERMES), SAMPLING)
    command = program(tmp_path, text)
    setup = make_setup(
        lambda kind: AgentEnvironment(command=command), policy=policy, attempts=2, episode_timeout_s=30.0,
        step_timeout_s=20.0,
    )  # fmt: skip
    trajectory = await Episode(make_spec(), setup).run()
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 1.0)
    (lost,) = trajectory.lost_attempts
    assert lost.failure.message == "the agent's program ended with status 1: KeyError: 'lost my keys'"
    assert lost.steps == 1
    assert len(trajectory.steps) == 1


async def test_a_crash_may_have_a_reward_of_its_own(tmp_path):
    text = f"{ASK_ONCE}ask('a')\nraise ValueError('no such tool')\n"
    trajectory = await run(tmp_path, text, crash_reward=-0.5, reward="math")
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, -0.5)
    assert trajectory.last_observation == "ValueError: no such tool"
    assert trajectory.steps[-1].invalid


@pytest.mark.parametrize(("status", "reward"), [(0, 1.0), (3, 0.0)])
async def test_an_exit_status_may_be_the_reward(tmp_path, status, reward):
    text = f"{ASK_ONCE}ask('a')\nraise SystemExit({status})\n"
    trajectory = await run(tmp_path, text, reward="exit")
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, reward)


async def test_a_reward_function_scores_what_the_program_prints(tmp_path):
    def score(prompt, completion, answer):
        return {"right": float(completion == answer), "asked": float(prompt == "2+2=")}

    text = f"{ASK_ONCE}print(ask('a'))\n"
    trajectory = await run(tmp_path, text, reward="score", kinds={"score": environment_of(score)})
    assert trajectory.rewards == {"right": 1.0, "asked": 1.0}


async def test_a_started_program_may_post_its_reward(tmp_path):
    text = (
        f"{ASK_ONCE}ask('a')\n"
        "post('/end', {'reward': {'right': 1, 'short': 0.5}})\n"
        "try:\n    ask('b')\nexcept urllib.error.HTTPError as error:\n    print(error)\n"
    )
    trajectory = await run(tmp_path, text, reward="posted")
    assert (trajectory.reward, trajectory.rewards) == (1.5, {"right": 1.0, "short": 0.5})
    assert len(trajectory.steps) == 1


async def test_a_started_program_that_posts_no_reward_is_told_what_is_right(tmp_path):
    trajectory = await run(tmp_path, f"{ASK_ONCE}print(ask('a'))\n", reward="posted")
    assert trajectory.status is Status.FAILED
    assert trajectory.failure.message.startswith("the agent's program posted no reward; post one to")


async def test_a_program_that_asks_nothing_is_a_failure(tmp_path):
    trajectory = await run(tmp_path, "print(1)\n")
    assert "without a request to the model" in trajectory.failure.message


async def test_a_program_at_the_limit_of_steps_is_truncated_without_reward(tmp_path):
    trajectory = await run(tmp_path, TOOL_LOOP, CALL, max_steps=3)
    assert (trajectory.status, trajectory.truncated, trajectory.reward) == (Status.COMPLETED, True, 0.0)
    assert len(trajectory.steps) == 3


async def test_sub_agents_at_the_same_time_are_sequences(tmp_path):
    text = (
        "import asyncio, openai\nclient = openai.AsyncOpenAI(max_retries=0)\n"
        "async def ask(text):\n"
        "    messages = [{'role': 'user', 'content': text}]\n"
        "    return await client.chat.completions.create(model='m', messages=messages, n=2)\n"
        "async def main():\n"
        "    await asyncio.gather(*map(ask, 'abc'))\n"
        "asyncio.run(main())\nprint(1)\n"
    )
    trajectory = await run(tmp_path, text)
    assert len(trajectory.steps) == 6
    assert [step.context_reset for step in trajectory.steps] == [False] + [True] * 5
    assert all(step.generation.token_ids[-1] == 2 for step in trajectory.steps)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("response_format={'type': 'json_object'}", "response_format: an engine's logprobs under a grammar"),
        ("messages=[{'role': 'user', 'content': [{'type': 'image_url'}]}]", "content: only texts and images"),
        ("n=99", "n: expected a whole number from 1 to 16"),
    ],
)  # fmt: skip
async def test_a_request_that_cannot_be_answered_is_refused_with_its_field(tmp_path, field, reason):
    text = (
        "import openai\nasked = dict(model='m', messages=[{'role': 'user', 'content': 'a'}]) | "
        f"dict({field})\nopenai.OpenAI().chat.completions.create(**asked)\n"
    )
    trajectory = await run(tmp_path, text)
    assert trajectory.status is Status.FAILED
    assert reason in trajectory.failure.message


@pytest.mark.parametrize("words", ["", "--stream"], ids=["whole", "streamed"])
async def test_an_agent_of_the_responses_api_is_recorded_as_one_of_chats(tmp_path, words):
    engine = Talking(f"I add. {CALL}", "4")
    trajectory = await run(tmp_path, RESPONSES_LOOP, engine=engine, words=words)

    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 1.0), trajectory.failure
    first, second = trajectory.steps
    assert engine.contexts[1] == [
        *first.prompt_token_ids, *first.generation.token_ids, *second.prompt_token_ids
    ]  # fmt: skip
    assert (second.begins, second.observation.text) == ("", "4")
    assert '"name": "add"' in tiny_chat().decode(first.prompt_token_ids)


@pytest.mark.parametrize("error", [EngineError("broken off"), RetryLater("the engine is gone")])
async def test_an_engines_failure_is_the_episodes_and_not_the_programs(tmp_path, error):
    class Broken(Talking):
        async def before_answer(self):
            raise error

    running = run(tmp_path, f"{ASK_ONCE}ask('a')\n", engine=Broken("4"))
    if isinstance(error, RetryLater):
        with pytest.raises(RetryLater):
            await running
    else:
        trajectory = await running
        assert (trajectory.failure.kind, trajectory.failure.message) == ("EngineError", "broken off")


async def test_a_hung_program_ends_with_all_its_processes(tmp_path):
    pids = tmp_path / "pids"
    text = (
        f"{ASK_ONCE}ask('a')\nimport os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)\n"
    )
    command = program(tmp_path, text)
    policy = Policy(Talking("4"), EngineGate(8), tiny_chat(HERMES), SAMPLING)
    setup = make_setup(lambda kind: AgentEnvironment(command=command), policy=policy, episode_timeout_s=60.0)
    episode = Episode(make_spec(), replace(setup, step_timeout_s=60.0))

    async def abandon():
        while not pids.exists() or not pids.read_text():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        episode.abandon()

    async with asyncio.TaskGroup() as jobs:
        jobs.create_task(abandon())
        trajectory = await episode.run()
    assert trajectory.status is Status.ABANDONED
    assert [step.generation.text for step in trajectory.steps] == ["4"]
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_program_that_neither_asks_nor_ends_times_out(tmp_path):
    command = program(tmp_path, "import time\ntime.sleep(600)\n")
    policy = Policy(Talking("4"), EngineGate(8), tiny_chat(HERMES), SAMPLING)
    setup = make_setup(lambda kind: AgentEnvironment(command=command), policy=policy, step_timeout_s=0.3)
    trajectory = await Episode(make_spec(), setup).run()
    assert trajectory.status is Status.TIMED_OUT
    assert "program took longer than 0.3 s" in trajectory.failure.message


def test_a_program_that_is_not_there_is_refused_before_the_run(tmp_path):
    with pytest.raises(EnvironmentUnavailable, match="there is no program no-such-agent"):
        AgentEnvironment.check_settings(command="no-such-agent --fast")


def setup_of(address, *responses, **changes):
    settings = {"listen": address, "reward": changes.pop("reward", "posted")}

    def create(kind):
        return MathEnvironment() if kind == "math" else AgentEnvironment(**settings)

    policy = Policy(Talking(*responses), EngineGate(8), tiny_chat(HERMES), SAMPLING)
    limits = {"step_timeout_s": 20.0, "episode_timeout_s": 60.0} | changes
    return make_setup(
        create, policy=policy, scorer_of=lambda kind: AgentEnvironment.scorer(**settings), **limits
    )


async def test_the_pages_agent_that_runs_already_plays_episodes_to_the_end(tmp_path):
    address, responses = f"127.0.0.1:{free_port()}", ("4", "5", "4")
    with page_client(tmp_path, address) as client:
        for text in responses:
            trajectory = await Episode(make_spec(), setup_of(address, text)).run()
            assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, float(text == "4"))
            assert [step.generation.text for step in trajectory.steps] == [text]
        await AgentEnvironment.close_shared()
        assert await asyncio.to_thread(client.wait, 20) == 0


async def test_what_an_agent_that_runs_already_posts_is_scored(tmp_path):
    address, posted = f"127.0.0.1:{free_port()}", ('{"reward": reward}', '{"completion": answer.content}')
    with page_client(tmp_path, address, posted):
        trajectory = await Episode(make_spec(), setup_of(address, "4", reward="math")).run()
    assert (trajectory.reward, trajectory.last_observation) == (1.0, "")
    assert trajectory.steps[-1].generation.text == "4"


async def test_an_agent_that_vanishes_costs_an_attempt_and_waiting_does_not(tmp_path):
    address, limit_s = f"127.0.0.1:{free_port()}", 1.0
    setup = setup_of(address, "4", attempts=100, step_timeout_s=limit_s)
    post = '    run.post(f"{URL}/end"'
    async with asyncio.TaskGroup() as jobs:
        episode = jobs.create_task(Episode(make_spec(), setup).run())
        await asyncio.sleep(2 * limit_s)
        assert not setup.lost_attempts.commonest(), "nobody has taken it"
        with page_client(tmp_path, address, (post, f"    break\n{post}")):
            while not setup.lost_attempts.commonest():  # noqa: ASYNC110 - the client is another process
                await asyncio.sleep(0.05)
        with page_client(tmp_path, address):
            trajectory = await episode
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 1.0)
    assert "program took longer than 1 s" in trajectory.lost_attempts[0].failure.message


async def test_an_address_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EnvironmentUnavailable, match=rf"listen={address}: .*address already in use"):
            await Episode(make_spec(), setup_of(address, "4")).run()
