"""Plays a task of a verifiers environment and prints its rewards; or writes a range of tasks for a run.

pip install verifiers uv        # in an environment of its own, with your environment beside them
"""

import asyncio
import json
import os
import sys
import tomllib
from itertools import islice
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # harnesses call uv
config = resolve_env_config(tomllib.loads(Path(sys.argv[1]).read_text())["env"])
env = load_environment(config)


async def play(line):
    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate(line["data"]), config.taskset.task)
    policy = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        return await env.run_episode(task, vf.ModelContext(model="policy", client=policy))


if len(sys.argv) > 2:
    for task in islice(env.taskset, *map(int, sys.argv[2].split(":"))):
        line = {"task_id": f"{config.taskset.id}-{task.data.idx}", "prompt": task.data.prompt_text}
        print(json.dumps(line | {"data": task.data.model_dump(mode="json")}))
    sys.exit()
episode = asyncio.run(play(json.load(sys.stdin)))
if not episode.ok:
    sys.exit(f"{[error for part in (episode, *episode.traces) for error in part.errors]}")
rewards = [each for trace in episode.traces for each in trace.rewards.items() if each[1]]
print(json.dumps({name: sum(one.value for key, one in rewards if key == name) for name, _ in rewards}))
