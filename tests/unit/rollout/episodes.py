"""Hand-written fakes around an episode: an engine, an environment, a setup."""

import asyncio
from dataclasses import replace

from rl_agent.engine.wire import Sampling
from rl_agent.rollout.collector.episode import Episode, EpisodeSetup
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import EpisodeDraws, Policy
from rl_agent.types import EpisodeKey, EpisodeSpec, Generation, Observation, StepResult, Task
from tests.support.tiny_chat import tiny_chat, tiny_tokenizer

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, max_tokens=20, seed=0)
TURN_END_ID = 2


class FakeEngine:
    """Answers `say` to everything; records the contexts it was sent."""

    def __init__(self, say="4", *, weight_version=5):
        self.weight_version = weight_version
        self.say = say
        self.contexts = []
        self.samplings = []
        self.messages = []
        self.tools = []
        self.ended_episodes = []
        self.takes_images = False

    async def generate(self, prompt_token_ids, sampling, *, request_id, decode):
        self.contexts.append(list(prompt_token_ids))
        self.samplings.append(sampling)
        await self.before_answer()
        return self.generation()

    async def generate_chat(self, messages, sampling, *, request_id, chat_template_kwargs, decode, tools=()):
        self.messages.append(list(messages))
        self.tools.append(tools)
        return (7, 8, 9), self.generation()

    async def end_episode(self, episode):
        self.ended_episodes.append(episode)

    async def before_answer(self):
        pass

    def generation(self):
        ids = (*tiny_tokenizer().encode(self.say).ids, TURN_END_ID)
        version = self.weight_version
        return Generation(ids, tuple(-0.1 for _ in ids), self.say, "stop", version, version)


class FakeEnvironment:
    """Ends after `length` steps with reward 1; an entry of `faults` is raised by the call of that name.

    Each step has the named `rewards`.
    """

    def __init__(self, length=1, *, faults=None, hangs=(), truncates=False, rewards=None):
        self.length = length
        self.rewards = rewards or {}
        self.faults = faults or {}
        self.hangs = set(hangs)
        self.truncates = truncates
        self.actions = []
        self.closed = 0

    async def reset(self, task, seed):
        await self._meet("reset")
        return Observation(task.prompt)

    async def step(self, action):
        self.actions.append(action)
        await self._meet(f"step {len(self.actions)}")
        ends = len(self.actions) == self.length
        done = ends and not self.truncates
        ending = {"done": done, "truncated": ends and self.truncates, "rewards": self.rewards}
        return StepResult(Observation("go on"), float(done), **ending)

    async def close(self):
        self.closed += 1
        await self._meet("close")

    async def _meet(self, call):
        if call in self.hangs:
            await asyncio.Event().wait()
        if call in self.faults:
            raise self.faults[call]


def make_spec(index=0, *, max_steps=10):
    task = Task(f"task-{index}", "2+2=", "fake", "easy", answer="4")
    return EpisodeSpec(EpisodeKey(task.task_id, 0, 0), task, max_steps=max_steps, seed=100 + index)


def make_policy(engine=None, chat=None, **changes):
    return Policy(engine or FakeEngine(), EngineGate(8), chat or tiny_chat(), SAMPLING, **changes)


def draws_of(policy):
    return EpisodeDraws(policy, seed=1, name="t:0", task_id="t")


def make_setup(environment, engine=None, **changes):
    """`environment` is an instance, or a function of the environment's kind."""
    setup = EpisodeSetup(
        split="train",
        iteration=1,
        model="model",
        policy=make_policy(engine),
        create_environment=lambda kind, crashes: environment(kind) if callable(environment) else environment,
        step_timeout_s=5.0,
        episode_timeout_s=5.0,
    )
    return replace(setup, **changes)


def run_episode(environment, engine=None, *, max_steps=10, **changes):
    return Episode(make_spec(max_steps=max_steps), make_setup(environment, engine, **changes)).run()
