"""The collector against lockstep: the same engine, episodes alike, environments with a long tail.

    python benchmarks/rollout/lockstep.py                                  simulated engine, three minutes
    python benchmarks/rollout/lockstep.py --engine http://127.0.0.1:8999   a real one, on a CPU rather with
        --episodes 512 --places 32 --median-s 0.2                            ten minutes
    python benchmarks/rollout/lockstep.py --environment web --workers 14 --engine URL …
                                              screenshots of a shop in Chromium, for a vision model

- step barrier: a batch of environments takes each step together; who has ended waits for the batch.
- episode barrier: a batch runs freely, and the next batch starts when its last episode has ended.
- asynchronous: the real collector, store included, to the very last episode; and once more with the stop
  rule that a rollout has by default (0.95, grace period scaled to these latencies).

Claim: at least 4 times the trajectories a minute of the step barrier, and the engine idle for less than 5 %
of the rollout. Idle: no request of this program is at the engine.
"""

import argparse
import asyncio
import itertools
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.cluster.member.member import Member
from rl_agent.config.plan import Plan
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.env.protocol import Environment
from rl_agent.env.remote.environments import Environments
from rl_agent.monitor import metrics
from rl_agent.rollout.collector.conversation import Conversation
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import EpisodeDraws, Policy
from rl_agent.rollout.collector_setup import context_limits
from rl_agent.rollout.run import run_rollout
from rl_agent.rollout.sample import Assignment, sample_of
from rl_agent.system.flag_parser import FlagParser
from rl_agent.types import EpisodeSpec, Observation
from tests.support.rollout_setup import make_plan, simulated_engine, write_tasks

KINDS = {
    "slow": "benchmarks.rollout.environments:LongTailedEnvironment",
    "web": "benchmarks.rollout.environments:LongTailedPages",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One way of collecting, measured."""

    name: str
    trajectories: int
    seconds: float
    idle_share: float

    @property
    def per_minute(self) -> float:
        return 60 * self.trajectories / self.seconds


class LockstepEpisode:
    """An episode that is moved from outside, half a step at a time."""

    def __init__(self, spec: EpisodeSpec, policy: Policy, environment: Environment) -> None:
        self._spec = spec
        self._environment = environment
        self._conversation = Conversation(
            EpisodeDraws(policy, seed=spec.seed, name=str(spec.key), task_id=spec.key.task_id)
        )
        self._observation: Observation | None = None
        self._action = ""
        self.is_done = False

    async def reset(self) -> None:
        self._observation = await self._environment.reset(self._spec.task, self._spec.seed)

    async def respond(self) -> None:
        assert self._observation is not None
        self._action = (await self._conversation.respond(self._observation)).action

    async def step(self) -> None:
        result = await self._environment.step(self._action)
        self._observation, self.is_done = result.observation, result.done

        if self.is_done:
            await self._environment.close()

    async def run(self) -> None:
        await self.reset()
        while not self.is_done:
            await self.respond()
            await self.step()


async def step_barrier(episodes: Iterator[LockstepEpisode], places: int) -> None:
    while batch := list(itertools.islice(episodes, places)):
        await asyncio.gather(*(episode.reset() for episode in batch))
        while batch := [episode for episode in batch if not episode.is_done]:
            await asyncio.gather(*(episode.respond() for episode in batch))
            await asyncio.gather(*(episode.step() for episode in batch))


async def episode_barrier(episodes: Iterator[LockstepEpisode], places: int) -> None:
    while batch := list(itertools.islice(episodes, places)):
        await asyncio.gather(*(episode.run() for episode in batch))


Lockstep = Callable[[Iterator[LockstepEpisode], int], Awaitable[None]]


async def measure_lockstep(name: str, collect: Lockstep, plan: Plan, most: int | None) -> Row:
    config = plan.config
    specs = sample_of(Assignment(plan, "train", 1, resume=False)).specs[:most]
    settings = ClientSettings(config.rollout.request_timeout_s, config.rollout.request_retries)
    chat = ChatTokenizer.load(config.model.base_model, {})
    sampling = Sampling(1.0, 1.0, -1, 0.0, config.policy_config.max_new_tokens, 0)
    async with (
        EngineClient(config.engine.base_url, settings, identify=lambda served: 0) as engine,
        Environments(config.env_config) as registry,
    ):
        gate = EngineGate(config.rollout.max_vllm_sessions)
        policy = Policy(
            engine,
            gate,
            chat,
            sampling,
            limits=context_limits(config, engine.served.max_model_len),
            image_tokens=ImageTokens.load(chat.folder) if chat.folder is not None else ImageTokens(),
        )
        episodes = (LockstepEpisode(spec, policy, registry.create(spec.task.env)) for spec in specs)
        began = time.perf_counter()
        await collect(episodes, config.env_config.server_size)
        seconds = time.perf_counter() - began
    return Row(name, len(specs), seconds, gate.idle_s() / seconds)


def measure_collector(name: str, plan: Plan) -> Row:
    uvloop.run(run_rollout(Assignment(plan, "train", 1, resume=False), Member.alone(plan)))
    record = next(metrics.read(plan.paths.metrics))
    trajectories = round(record["train/episodes"] * record["train/completed_share"])
    return Row(name, trajectories, record["train/rollout_s"], record["train/engine_idle_share"])


@contextmanager
def engine_of(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path | None]]:
    """URL of the engine, and the folder of its model where it is a real one."""
    if options.engine != "simulated":
        with urllib.request.urlopen(options.engine + "/v1/models", timeout=10) as answer:
            yield options.engine, Path(json.load(answer)["data"][0]["root"])
        return
    latency = f"lognormal:{options.generate_s},0.5"
    tokens = options.response_tokens
    with simulated_engine(folder, latency=latency, tokens=tokens, max_num_seqs=options.places) as url:
        yield url, None


def with_other_seed(plan: Plan) -> Plan:
    """Other episodes of the same distribution: a real engine has the prompts of the former in its cache."""
    config = plan.config.model_copy(update={"seed": plan.config.seed + 1})
    return plan.model_copy(update={"config": config})


def with_stop_rule(plan: Plan, threshold: float, grace_period_s: float) -> Plan:
    """The same run with this rule, in a log folder of its own."""
    changes = {"completion_threshold": threshold, "completion_grace_period": grace_period_s}
    rollout = plan.config.rollout.model_copy(update=changes)
    log_path = plan.config.log_path / f"threshold-{threshold}"
    config = plan.config.model_copy(update={"rollout": rollout, "log_path": log_path})
    changed = plan.model_copy(update={"config": config})
    shutil.copytree(plan.tasks_file("train").parent, changed.tasks_file("train").parent)
    return changed


def measure(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name, engine_of(options, Path(name)) as (url, model):
        environment = f"{{median_s:{options.median_s},sigma:{options.sigma},max_steps:{options.max_steps}}}"
        plan = make_plan(
            Path(name),
            f"+env_config.kinds.measured={KINDS[options.environment]}",
            f"+env_config.kwargs.measured={environment}",
            f"env_config.workers={options.workers}",
            "env_config.train_tasks_rollout_size=-1",
            f"env_config.server_size={options.places}",
            f"policy_config.max_new_tokens={options.response_tokens}",
            *options.overrides,
            f"seed={options.seed}",
            engine_url=url,
            model=model,
        )
        write_tasks(plan, options.episodes, env="measured", difficulty="hard", site="shop", goal="price")
        count = options.baseline_episodes
        yield uvloop.run(measure_lockstep("step barrier", step_barrier, plan, count))
        plan = with_other_seed(plan)
        yield uvloop.run(measure_lockstep("episode barrier", episode_barrier, plan, count))
        plan = with_other_seed(plan)
        yield measure_collector("asynchronous", with_stop_rule(plan, 1.0, 0.0))
        plan = with_other_seed(plan)
        grace_s = 10 * options.median_s
        yield measure_collector("asynchronous, stop rule", with_stop_rule(plan, 0.95, grace_s))


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--engine", default="simulated", help="simulated, or the URL of a real one")
    parser.add_argument("--environment", choices=KINDS, default="slow")
    parser.add_argument("--workers", type=int, default=0, help="processes of environments, 0: this one")
    parser.add_argument("--response-tokens", type=int, default=16, help="most tokens of a response")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="configuration, as for run.sh")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--baseline-episodes", type=int, help="fewer for the two baselines, whole batches")
    parser.add_argument("--places", type=int, default=64, help="environments alive at once")
    parser.add_argument("--max-steps", type=int, default=10)
    parser.add_argument("--median-s", type=float, default=0.05, help="of one step of an environment")
    parser.add_argument("--sigma", type=float, default=1.0, help="its lognormal tail")
    parser.add_argument("--generate-s", type=float, default=0.05, help="median of one simulated response")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(
        f"{options.episodes} episodes of 1-{options.max_steps} steps, {options.places} environments at once,"
    )
    print(f"environment step lognormal({options.median_s:g} s, sigma {options.sigma:g})")
    print(f"\n{'':26}{'trajectories':>13}{'seconds':>9}{'per minute':>12}{'speed':>8}{'engine idle':>13}")
    baseline: Row | None = None
    for row in measure(options):
        baseline = baseline or row
        speed = row.per_minute / baseline.per_minute
        head = f"{row.name:26}{row.trajectories:13}{row.seconds:9.1f}{row.per_minute:12.0f}"
        print(f"{head}{speed:7.1f}x{row.idle_share:13.1%}", flush=True)
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
