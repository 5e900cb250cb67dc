"""Images through the pool: prompts, tokens and logprobs are those of one vLLM that nobody disturbs."""

import asyncio
import base64
import hashlib
import json
import random
import re
import subprocess
import sys
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import openai
import pytest
from PIL import Image

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.packed import PATH, PromptImage
from rl_agent.engine.wire import Sampling
from rl_agent.env.agent.openai_wire import read_request
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.collector.agent_chats import AgentChats
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import EpisodeDraws, Policy
from rl_agent.rollout.collector.prompts import image_part
from tests.integration.conftest import started_server
from tests.integration.pool.test_vllm import SLOW, CuttingProxy
from tests.integration.tiny_model import make_plan
from tests.integration.training.tiny_vision_model import MAX_LENGTH
from tests.integration.training.vision_packages import vision_environment
from tests.support.pool_setup import collector, manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(600)]

IMAGES, REQUESTS, CUTS, TOKENS = 5, 16, 40, 100


@contextmanager
def two_servers(home, *more, kind="qwen3_vl"):
    """The plans of two servers with one tiny vision model."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in vision_environment(home / "packages").items():
            patch.setenv(name, value)
        make = [sys.executable, "-m", "tests.integration.training.tiny_vision_model", home / "model", kind]
        subprocess.run(make, cwd=PROJECT_ROOT, check=True)
        plans = []
        for name in ("first", "second"):
            words = [f"engine.port={free_port()}", f"engine.max_model_len={MAX_LENGTH}"]
            words += ["engine.max_num_seqs=16", "engine.extra_args.kv-cache-memory-bytes=67108864"]
            words += ["engine.extra_args.enable-auto-tool-choice=true"]
            words += ["engine.extra_args.tool-call-parser=hermes"]
            plans.append(make_plan(home / name, home / "model", *words, *more))
            stack.enter_context(started_server(plans[-1]))
        yield plans


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with two_servers(tmp_path_factory.mktemp("images")) as plans:
        yield plans


@pytest.fixture(scope="module")
def pictures(servers):
    return make_pictures(servers[0].config.paths.images)


def make_pictures(folder):
    """Pictures of one colour each, kept as a run keeps them: named by their content."""
    folder.mkdir(parents=True)
    files = []
    for number in range(IMAGES):
        file = folder / "picture.png"
        Image.new("RGB", (64, 64), (250 - 50 * number, 40 * number, 128)).save(file)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        files.append(PromptImage(digest, file.rename(folder / f"{digest}.png")))
    return files


def prompts_of(chat, pictures):
    """Prompts of one to three pictures each: as messages, as token ids, and their pictures."""
    drawn = random.Random(0)
    for number in range(REQUESTS):
        shown = drawn.choices(pictures, k=1 + number % 3)
        text = {"type": "text", "text": f"Reach the goal. {number}"}
        messages = [{"role": "user", "content": [*(image_part(str(image.path)) for image in shown), text]}]
        countable = [{"role": "user", "content": [*({"type": "image"} for _ in shown), text]}]
        yield messages, chat.encode_messages(countable), shown


def sampling(seed, temperature=0.0):
    return Sampling(temperature, 1.0, -1, 0.0, TOKENS, seed)


async def answers_by_tokens(client, chat, prompts):
    return await asyncio.gather(
        *(
            client.generate_with_images(
                token_ids, shown, sampling(number), request_id=f"r{number}", decode=chat.decode_after
            )
            for number, (_, token_ids, shown) in enumerate(prompts)
        )
    )


def sampled(answers):
    return [(prompt, each.token_ids, each.logprobs, each.finish_reason) for prompt, each in answers]


def assert_alike(answers, expected):
    """Check for the same prompts and tokens, and for logprobs that are nearly the same."""
    for ours, theirs in zip(sampled(answers), sampled(expected), strict=True):
        assert ours[:2] == theirs[:2] and ours[3] == theirs[3]
        assert ours[2] == pytest.approx(theirs[2], abs=1e-4)


async def test_images_beside_tokens_give_what_the_chat_gives(servers, pictures):
    plan = servers[0]
    chat = ChatTokenizer.load(plan.config.model.base_model, {})
    prompts = list(prompts_of(chat, pictures))
    async with collector(plan.config.engine.base_url, timeout_s=200) as client:
        assert client.takes_images
        by_tokens = await answers_by_tokens(client, chat, prompts)
        by_chat = [
            await client.generate_chat(
                messages,
                sampling(number),
                request_id=f"c{number}",
                chat_template_kwargs={},
                decode=chat.decode_response,
            )
            for number, (messages, _, _) in enumerate(prompts)
        ]
    assert all(len(prompt) > len(ids) for (prompt, _), (_, ids, _) in zip(by_tokens, prompts, strict=True))
    assert_alike(by_tokens, by_chat)


@asynccontextmanager
async def cut_pool(servers):
    """A pool of both servers, of which all cuts have happened at the end, and the proxies that make them."""
    cuts = [0] * CUTS
    first, second = (CuttingProxy(plan.config.engine.base_url, 7, cuts) for plan in servers)
    words = (*SLOW, "max_broken_attempts=1000", "stream_interval=1")
    async with manager(*words) as pool, first.running() as first_url, second.running() as second_url:
        await pool.join_ready(first_url, second_url)
        yield pool, first, second
        assert not cuts, f"{len(cuts)} cuts were left"


async def test_requests_with_images_move_with_their_tokens(servers, pictures):
    chat = ChatTokenizer.load(servers[0].config.model.base_model, {})
    prompts = list(prompts_of(chat, pictures))
    async with collector(servers[0].config.engine.base_url, timeout_s=200) as direct:
        calm = await answers_by_tokens(direct, chat, prompts)
    async with cut_pool(servers) as (pool, first, second):
        async with collector(pool.url, timeout_s=200) as client:
            moved = await answers_by_tokens(client, chat, prompts)
        assert pool.state.account.tokens == sum(len(each.token_ids) for _, each in moved)
    assert min(proxy.requests[PATH] for proxy in (first, second)) > CUTS / 4
    assert sum(len(each.spans) > 1 for _, each in moved) > REQUESTS / 2
    assert_alike(moved, calm)


TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
SPECIAL = re.compile(r"<\|\w+\|>")
ASKED = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": True, "extra_body": {"return_token_ids": True}}


def chats_of(pictures):
    """Messages as OpenAI's clients send them, with one to three pictures; half of them have a tool."""
    drawn = random.Random(0)
    for number in range(REQUESTS):
        shown = [base64.b64encode(image.path.read_bytes()).decode() for image in drawn.choices(pictures, k=3)]
        first, *others = (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}
            for content in shown[: 1 + number % 3]
        )
        text = {"type": "text", "text": f"Reach the goal. {number}"}
        earlier = [{"role": "user", "content": [first, text]}, {"role": "assistant", "content": "up"}]
        yield [*earlier, {"role": "user", "content": [text, *others]}], [TOOL] if number % 2 else openai.omit


@asynccontextmanager
async def chatting(url):
    """Ask as OpenAI's own client does."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=200) as client:
        (model,) = (await client.models.list()).data
        yield partial(client.chat.completions.create, model=model.id, **ASKED)


def told(answer):
    """An answer's content, but for logprobs, names of half characters, and special tokens in the text."""
    (choice,) = answer.choices
    names = [entry.token for entry in choice.logprobs.content]
    return {
        "prompt": answer.prompt_token_ids,
        "tokens": choice.token_ids,
        "names": [name for name in names if name and name.isascii()],
        "content": SPECIAL.sub("", choice.message.content),
        "calls": choice.message.tool_calls,
        "finish": choice.finish_reason,
        "usage": answer.usage.model_dump(),
    }


def logprobs_of(answer):
    return [entry.logprob for entry in answer.choices[0].logprobs.content]


async def test_chats_with_images_are_answered_as_by_one_engine_they_never_left(servers, pictures):
    chats = list(chats_of(pictures))
    async with chatting(servers[0].config.engine.base_url) as ask:
        alone = await asyncio.gather(*(ask(messages=messages, tools=tools) for messages, tools in chats))
    async with cut_pool(servers) as (pool, *_), chatting(pool.url) as ask:
        moved = await asyncio.gather(*(ask(messages=messages, tools=tools) for messages, tools in chats))
    assert sum(len(answer.choices[0].weight_versions) > 1 for answer in moved) > REQUESTS / 2
    for ours, theirs in zip(moved, alone, strict=True):
        assert told(ours) == told(theirs)
        assert logprobs_of(ours) == pytest.approx(logprobs_of(theirs), abs=1e-4)


async def test_a_chat_with_an_image_is_streamed_or_has_several_answers(servers, pictures):
    messages, tools = next(chats_of(pictures))
    async with chatting(servers[0].config.engine.base_url) as ask:
        alone = await ask(messages=messages, tools=tools)
    async with manager(*SLOW) as pool:
        await pool.join_ready(servers[0].config.engine.base_url)
        async with chatting(pool.url) as ask:
            options = {"include_usage": True}
            stream = await ask(messages=messages, tools=tools, stream=True, stream_options=options)
            *parts, last = [part async for part in stream]
            two = await ask(messages=messages, tools=tools, n=2)
    role, *choices = [part.choices[0] for part in parts]
    assert role.delta.role == "assistant" and parts[0].prompt_token_ids == alone.prompt_token_ids
    assert [token for choice in choices for token in choice.token_ids] == alone.choices[0].token_ids
    content = "".join(choice.delta.content or "" for choice in choices)
    assert content == alone.choices[0].message.content.rstrip("\ufffd")
    values = [entry.logprob for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert values == pytest.approx(logprobs_of(alone), abs=1e-4)
    assert last.usage.prompt_tokens == alone.usage.prompt_tokens
    assert [choice.token_ids for choice in two.choices] == [alone.choices[0].token_ids] * 2


async def test_an_agents_images_are_recorded_with_the_tokens_of_vllms_own_chat(servers, pictures):
    plan, url = servers[0], servers[0].config.engine.base_url
    chat = ChatTokenizer.load(plan.config.model.base_model, {})
    async with chatting(url) as ask, collector(url, timeout_s=200) as client:
        policy = Policy(client, EngineGate(8), chat, sampling(0))
        for messages, _ in list(chats_of(pictures))[:4]:
            alone = await ask(messages=messages)
            draws = EpisodeDraws(policy, seed=1, name="a", task_id="t")
            folder = plan.config.paths.images
            agent = AgentChats(draws, model="m", max_steps=9, idle_s=60, images=folder)
            body = json.dumps({"messages": messages}).encode()
            await agent.ask(read_request(body).question)
            (step,) = agent.steps
            assert list(step.prompt_token_ids) == alone.prompt_token_ids
            assert list(step.generation.token_ids) == alone.choices[0].token_ids
            assert step.generation.logprobs == pytest.approx(logprobs_of(alone), abs=1e-4)
            shown = [Path(path).stem for path in step.observation.images]
            assert shown == list(step.seen.images) and len(shown) == str(messages).count("data:image")
