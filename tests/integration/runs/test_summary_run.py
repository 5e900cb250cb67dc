"""A real run by a real vLLM: the served model summarises its own history, and judges what came of it."""

import asyncio
import json
from pathlib import Path

import pytest

from rl_agent.chat.context.window import ContextLimits
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.trainer.llamafactory.inputs import read_summary
from rl_agent.trainer.llamafactory.prepare import prepare
from tests.integration.real_run import Run
from tests.integration.rollout.environments import Counting
from tests.integration.runs.summary_model import (
    MAX_LENGTH,
    SUMMARY,
    SUMMARY_PROMPT,
    TASK,
    VERDICTS,
    rehearse,
    save_chat,
    teach_episode,
)
from tests.integration.tiny_model import make_plan
from tests.integration.training.test_training_tokens import recorded, trained_on

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1200)]

LIMITS = {"max_rounds": 2, "keep_rounds": 1, "summary_tokens": 64}
CONTEXT = [
    "context=summary",
    f'context.summary_prompt="{SUMMARY_PROMPT}"',
    *(f"context.{key}={value}" for key, value in LIMITS.items()),
]
PROMPT_PRICE, COMPLETION_PRICE = 2.0, 10.0


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """The model, its tokenizer, and the episode as it was rehearsed."""
    folder = tmp_path_factory.mktemp("taught") / "model"
    chat = save_chat(folder)
    limits = ContextLimits(
        "summary",
        max_images=5,
        max_lines=100,
        max_model_len=MAX_LENGTH,
        response_tokens=64,
        summary_prompt=SUMMARY_PROMPT,
        **LIMITS,
    )
    rehearsed, lessons = asyncio.run(rehearse(chat, limits))
    teach_episode(folder, chat, rehearsed, lessons)
    return folder, chat, rehearsed


@pytest.fixture(scope="module")
def finished(taught, tmp_path_factory):
    """The run: its folder and the one episode of it."""
    folder, _, _ = taught
    with Run(tmp_path_factory.mktemp("run"), folder) as run:
        line = {"task_id": TASK.task_id, "prompt": TASK.prompt, "env": TASK.env, "difficulty": "easy"}
        (run.home / "data" / "train.jsonl").write_text(json.dumps(line | TASK.extra) + "\n")
        run.change(
            {
                "engine.max_model_len": MAX_LENGTH,
                "policy_config.temperature": 0,
                "env_config.workers": 0,
                "trainer.reward_threshold": 0,
            }
        )
        port = next(word.partition("=")[2] for word in run.words if word.startswith("engine.port="))
        process = run.start(
            "--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1", *CONTEXT,
            f"+env_config.kinds.counting={Counting.__module__}:Counting",
            f"env_config.module_folders=[{PROJECT_ROOT}]",
            "rollout.reward=judge", "openai_config.rubric_reward=weighted",
            f"openai_config.base_url=http://127.0.0.1:{port}/v1", f"openai_config.model={folder}",
            "openai_config.budget_usd=5", "openai_config.max_tokens=200",
            f"openai_config.price_per_million_prompt_tokens={PROMPT_PRICE}",
            f"openai_config.price_per_million_completion_tokens={COMPLETION_PRICE}",
            OPENAI_API_KEY="any",
        )  # fmt: skip
        assert process.wait(500) == 0, (run.home / "output").read_text()[-4000:]
        run.seconds_until_gone(process)
        (trajectory,) = read_shard(run.paths.shard("train", 1))[1]
        yield run, trajectory


def test_the_served_model_summarises_rounds_left_out_of_its_context(taught, finished):
    _, chat, rehearsed = taught
    _, trajectory = finished
    steps = trajectory.steps
    assert [step.action for step in steps] == [step.action for step in rehearsed.steps]

    summaries = [compaction for step in steps for compaction in step.seen.compactions]
    assert len(summaries) >= 2
    assert {chat.decode_response(compaction.generation.token_ids) for compaction in summaries} == {SUMMARY}
    for summary in summaries:
        assert SUMMARY_PROMPT in chat.decode(summary.prompt_token_ids)
        assert summary.generation.finish_reason == "stop"
    compacted = [step for step in steps if step.seen.compactions]
    for step in compacted:
        shown = chat.decode(step.prompt_token_ids)
        assert step.context_reset
        assert SUMMARY in shown
        assert shown.count("I say") == 2 + LIMITS["keep_rounds"]


def test_an_export_after_a_summary_is_the_context_the_model_saw(taught, finished, tmp_path):
    folder, _, _ = taught
    run, trajectory = finished
    plan = make_plan(run.log, folder, *CONTEXT, "trainer.reward_threshold=0")
    prepare(plan, 1)

    wanted = recorded(trajectory.steps)
    summaries = [compaction for step in trajectory.steps for compaction in step.seen.compactions]
    wanted += [
        (list(compaction.prompt_token_ids), list(compaction.generation.token_ids)) for compaction in summaries
    ]
    samples = trained_on(plan, is_collated=True)
    assert sorted(samples) == sorted(
        (prompt + response, [-100] * len(prompt) + response) for prompt, response in wanted
    )
    assert read_summary(plan.paths.update_dir(1)).left_out == {}


def test_the_served_model_judges_each_criterion_and_its_cost_is_counted(finished):
    run, trajectory = finished
    detail = trajectory.reward_detail
    assert trajectory.reward == pytest.approx(1 / 3)
    assert detail["criteria"] == [
        {
            "criterion": text,
            "weight": weight,
            "verdict": verdict.lower(),
            "reason": reason,
            "judge_model": str(run.model),
        }
        for weight, (text, (reason, verdict)) in enumerate(VERDICTS.items(), start=1)
    ]
    assert (detail["verdict"], detail["reason"]) == ("failure", "no response has that word")
    assert detail["prompt_tokens"] > 2 * 500
    assert detail["completion_tokens"] > 0
    cost = detail["prompt_tokens"] * PROMPT_PRICE + detail["completion_tokens"] * COMPLETION_PRICE
    assert detail["cost_usd"] == pytest.approx(cost / 1e6)

    numbers = json.loads(run.paths.metrics.read_text().splitlines()[-1])
    assert numbers["train/judge_verdicts"] == 1
    assert numbers["train/judge_cost_usd"] == pytest.approx(cost / 1e6)
    (spent,) = Path(run.paths.judge_cache, "spent").glob("*.txt")
    before, *verdicts = map(float, spent.read_text().split())  # the question before the start
    assert before > 0
    assert sum(verdicts) == pytest.approx(cost / 1e6)
