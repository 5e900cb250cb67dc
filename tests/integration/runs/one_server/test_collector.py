"""The collector against a real vLLM: what it records is what the model was given and did."""

import asyncio
import json

import pytest
from tokenizers import Tokenizer

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tokenizer_files import read_tokenizer
from rl_agent.cluster.member.member import Member
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.model import resolve_model
from rl_agent.engine.wire import Sampling
from rl_agent.errors import ConfigError
from rl_agent.rollout.engine_access import check_tokens, identify
from rl_agent.rollout.run import run_rollout
from rl_agent.rollout.sample import Assignment
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.types import Observation

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, max_tokens=24, seed=11)
TOLERANCE = 1e-3


@pytest.fixture
async def engine(vllm_server):
    config = vllm_server.plan.config
    settings = ClientSettings(request_timeout_s=60, retries=0)
    async with EngineClient(
        vllm_server.url, settings, identify=lambda served: identify(served, config, resolve_model(config))
    ) as client:
        yield client


@pytest.fixture
def chat(vllm_server):
    return ChatTokenizer.load(str(vllm_server.model), {})


@pytest.fixture(scope="module")
def logprobs_of(vllm_server):
    """Log-probabilities of the tokens of `response` after `context`, by a forward pass of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(vllm_server.model, dtype=torch.float32).eval()

    def compute(context, response):
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *response]])).logits[0, len(context) - 1 : -1]
        return torch.log_softmax(logits, -1)[range(len(response)), list(response)].tolist()

    return compute


def ask(engine, prompt, **changes):
    sampling = Sampling(**{**{n: getattr(SAMPLING, n) for n in SAMPLING.__slots__}, **changes})
    return engine.generate(prompt, sampling, request_id="test:0:0:0")


async def test_the_server_names_the_folder_it_was_started_on(engine, vllm_server):
    assert engine.served.root == str(vllm_server.model)
    assert engine.served.max_model_len == 256
    assert engine.weight_version == 0


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
async def test_logprobs_are_the_models_own_whatever_the_temperature(engine, chat, logprobs_of, temperature):
    prompt = chat.start(None, Observation("What is 3 + 4?"))
    generation = await ask(engine, prompt, temperature=temperature)

    assert generation.logprobs == pytest.approx(logprobs_of(prompt, generation.token_ids), abs=TOLERANCE)


async def test_the_text_is_the_decoded_response_without_its_end_token(engine, chat):
    prompt = chat.start(None, Observation("What is 3 + 4?"))
    drawn = await asyncio.gather(*(ask(engine, prompt, seed=seed, max_tokens=64) for seed in range(32)))

    assert {generation.finish_reason for generation in drawn} == {"stop", "length"}
    for generation in drawn:
        is_ended = generation.token_ids[-1] in chat.eos_token_ids
        assert is_ended == (generation.finish_reason == "stop")
        # Half a character at the end of a cut response is shown differently; its ids are what counts.
        decoded = chat.decode_response(generation.token_ids)
        assert generation.text.rstrip("\ufffd") == decoded.rstrip("\ufffd")


async def test_equal_seeds_draw_equal_responses_and_others_differ(engine, chat):
    prompt = chat.start(None, Observation("What is 3 + 4?"))
    first, again, other = [await ask(engine, prompt, seed=seed) for seed in (1, 1, 2)]

    assert first.token_ids == again.token_ids != other.token_ids


async def test_a_chat_request_reports_the_prompt_that_our_template_renders(engine, chat, logprobs_of):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 4?"}]
    prompt, generation = await engine.generate_chat(
        messages, SAMPLING, request_id="chat:0", chat_template_kwargs={}, decode=chat.decode_response
    )

    assert list(prompt) == chat.start("Be brief.", Observation("3 + 4?"))
    assert generation.logprobs == pytest.approx(logprobs_of(prompt, generation.token_ids), abs=TOLERANCE)


async def test_engine_tells_the_tokens_of_a_chat_and_of_its_text(engine, chat):
    messages = [{"role": "user", "content": "3 + 4?"}]
    text = chat.render(messages, (), add_generation_prompt=True)
    wanted = tuple(chat.start(None, Observation("3 + 4?")))

    assert await engine.tokenize({"messages": messages}) == wanted
    assert await engine.tokenize({"prompt": text, "add_special_tokens": False}) == wanted


async def test_engine_of_the_same_folder_has_equal_tokens(engine, chat, vllm_server):
    await check_tokens(engine, chat, vllm_server.plan.config, "What does <|im_end|> mean?")


@pytest.mark.parametrize(
    ("before", "added", "refused"),
    [("", "What is", "reads a text otherwise"), ("Now: ", "", "renders messages otherwise")],
)
async def test_engine_of_another_folder_is_refused(engine, vllm_server, before, added, refused):
    read = read_tokenizer(vllm_server.model)
    tokenizer = Tokenizer.from_str(read.tokenizer.to_str())  # that of the folder belongs to all who read it
    tokenizer.add_tokens([added] if added else [])
    other = ChatTokenizer(tokenizer, before + read.chat_template, read.eos_tokens, {})

    with pytest.raises(ConfigError, match=f"{refused} .*: token .* of the first prompt is"):
        await check_tokens(engine, other, vllm_server.plan.config, "What is 3 + 4?")


async def test_a_cancelled_request_leaves_the_engine(engine, chat):
    prompt = chat.start(None, Observation("What is 3 + 4?"))
    async with asyncio.timeout(60), asyncio.TaskGroup() as jobs:
        requests = [jobs.create_task(ask(engine, prompt, seed=seed, max_tokens=200)) for seed in range(32)]
        await asyncio.sleep(0.05)
        for request in requests:
            request.cancel()
    async with asyncio.timeout(30):
        while (await engine.pressure()).running:  # noqa: ASYNC110 - the engine offers no event
            await asyncio.sleep(0.05)
    assert any(request.cancelled() for request in requests)


async def test_recorded_conversations_equal_the_models_view_token_by_token(vllm_server, chat, logprobs_of):
    plan = with_tasks(vllm_server.plan, count=12)
    counts = await run_rollout(Assignment(plan, "train", 1, resume=False), Member.alone(plan))

    assert counts.submitted == 12 and counts.is_all_completed
    _, trajectories = read_shard(plan.paths.shard("train", 1))
    responses = 0
    for trajectory in trajectories:
        context = []
        for step in trajectory.steps:
            context += step.prompt_token_ids
            generation = step.generation
            expected = logprobs_of(context, generation.token_ids)
            assert generation.logprobs == pytest.approx(expected, abs=TOLERANCE)
            context += generation.token_ids
            responses += 1
        shown = chat.decode(context)
        assert shown.count("<|im_start|>user\n") == len(trajectory.steps) == 3
        assert "Turn 2: go on.<|im_end|>\n<|im_start|>assistant\n" in shown
    assert responses == 36


def with_tasks(plan, count):
    """The plan with `count` train tasks of three turns each, and short responses."""
    config = plan.config
    kinds = {"three_turns": "tests.integration.rollout.environments:ThreeTurns"}
    changed = config.model_copy(
        update={
            "env_config": config.env_config.model_copy(
                update={"kinds": kinds, "default_env": "three_turns", "train_tasks_rollout_size": -1}
            ),
            "policy_config": config.policy_config.model_copy(update={"max_new_tokens": 24}),
        }
    )
    tasks = [
        {"task_id": f"t{i}", "prompt": f"What is {i} + {i}?", "difficulty": "easy"} for i in range(count)
    ]
    path = plan.tasks_file("train")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return plan.model_copy(update={"config": changed})
