"""A local server that speaks the OpenAI chat API, and an episode to be judged."""

import asyncio
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer as LocalServer

from rl_agent.config.sections.judge import JudgeConfig, JudgeOverride
from rl_agent.judge.judge import ModelJudge
from rl_agent.types import EpisodeKey, Generation, Observation, Status, Step, Task, Trajectory

APPROVES = '{"reason": "it agrees", "verdict": "PASS"}'
REJECTS = '{"reason": "it does not", "verdict": "FAIL"}'
AT_ONCE = {"retry-after-ms": "1"}


def config(**fields):
    return JudgeConfig(
        **{
            "model": "judge-1",
            "base_url": "http://127.0.0.1:1/v1",
            "openai_api_key_env_var": "JUDGE_KEY",
            "temperature": 0.0,
            "max_tokens": 100,
            "max_tokens_name": "max_tokens",
            "timeout_s": 5,
            "max_retries": 2,
            "max_concurrency": 4,
            "max_images": 4,
            "structured_output": True,
            "rubric_reward": "all_pass",
            "verdict_prompt": "verdict.md",
            "pick_prompt": "pick.md",
            "budget_usd": None,
            "price_per_million_prompt_tokens": 2.0,
            "price_per_million_completion_tokens": 10.0,
            "pick": JudgeOverride(),
            "criterion": JudgeOverride(),
            "evaluation": JudgeOverride(),
        }
        | fields
    )


def trajectory(response="4", *, prompt="2+2=", answer="4", **extra):
    generation = Generation((1,), (-0.1,), response, "stop", 0, 0)
    step = Step(Observation(prompt), (1, 2), generation, response, 0.0, changed=True)
    return Trajectory(
        key=EpisodeKey("t", 0, 0),
        task=Task("t", prompt, "math", "easy", answer, extra),
        split="train",
        iteration=1,
        status=Status.COMPLETED,
        steps=(step,),
        reward=0.0,
        system_prompt="",
        model="policy",
        weight_version_min=0,
        weight_version_max=0,
        seed=0,
        started_at=0.0,
        duration_s=1.0,
    )


def completion(content, finish_reason="stop"):
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "judge-1",
        "choices": [
            {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": content}}
        ],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050},
    }


class Api:
    """Answers with the given responses in turn, the last one for ever; keeps the requests."""

    def __init__(self, *responses):
        self.responses = [web.json_response(r) if isinstance(r, dict) else r for r in responses]
        self.requests = []
        self.at_once = self.most_at_once = 0

    async def answer(self, request):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.requests.append((request.headers.get("Authorization"), await request.json()))
        await asyncio.sleep(0)
        self.at_once -= 1
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        return web.Response(status=response.status, headers=response.headers, body=response.body)


def error(status, headers=AT_ONCE, message="no"):
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


@asynccontextmanager
async def serving(api):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", api.answer)
    async with LocalServer(app) as server:
        yield str(server.make_url("/v1"))


@asynccontextmanager
async def judge_at(api, tmp_path, **fields):
    async with serving(api) as url, ModelJudge(config(base_url=url, **fields), tmp_path / "cache") as judge:
        yield judge
