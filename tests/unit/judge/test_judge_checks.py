"""The needs of a model judge are checked before a run starts."""

import pytest
from aiohttp import web

from rl_agent.config.plan import Command
from rl_agent.config.sections.judge import JudgeOverride
from rl_agent.errors import ConfigError
from rl_agent.judge.judge import ModelJudge
from rl_agent.judge.judge_budget import spent_usd
from rl_agent.judge.judge_checks import check_judge, try_out
from tests.unit.config.overrides.test_compose import compose
from tests.unit.judge.judge_api import APPROVES, Api, completion, config, error, judge_at, trajectory
from tests.unit.plan.test_checks import BOTH

COMMAND = Command.model_validate(BOTH)


def test_a_judge_that_is_described_and_not_asked_is_named_in_one_line():
    words = ("openai_config.model=gpt-4o", "openai_config.max_images=2")
    named = "openai_config.max_images, openai_config.model"

    told = f"{named} change nothing: no judge is asked; set rollout.reward=judge"
    assert [note for note in compose(*words).notes if "openai_config" in note] == [told]
    assert [note for note in compose(*words, "rollout.reward=judge").notes if "openai_config" in note] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("openai_config.budget_usd=5",), "has no price to count by"),
        (("openai_config.verdict_prompt=none.md",), r"the prompt .*none\.md cannot be read"),
        (("openai_config.pick_prompt=default.yaml",), r"the prompt .*default\.yaml lacks \{fence\}"),
        (
            ("+openai_config.pick.openai_api_key_env_var=OTHER",),
            "the variable OTHER with the judge's API key",
        ),
    ],
)
def test_a_judge_that_could_not_work_is_refused(words, message):
    config = compose("rollout.reward=judge", *words).config
    with pytest.raises(ConfigError, match=message):
        check_judge(config, COMMAND, {"OPENAI_API_KEY": "x"})


def test_a_budget_that_is_spent_already_is_refused_before_a_run(tmp_path):
    prices = (f"openai_config.price_per_million_{kind}_tokens=1" for kind in ("prompt", "completion"))
    config = compose("rollout.reward=judge", "openai_config.budget_usd=5", *prices).config
    config = config.model_copy(update={"log_path": tmp_path})
    check_judge(config, COMMAND, {"OPENAI_API_KEY": "x"})
    spent = config.paths.judge_cache / "spent"
    spent.mkdir(parents=True)
    (spent / "a.txt").write_text("5.0\n")

    with pytest.raises(ConfigError, match=r"budget_usd=5 is spent"):
        check_judge(config, COMMAND, {"OPENAI_API_KEY": "x"})


TASK = trajectory().task
NO_LIMIT = (
    "Unsupported parameter: 'max_tokens' is not supported with this model.\n"
    "Use 'max_completion_tokens' instead."
)
NO_TEMPERATURE = "Unsupported value: 'temperature' does not support 0.0 with this model."


async def tried(tmp_path, *responses, tasks=(TASK,), **fields):
    api = Api(*responses)
    async with judge_at(api, tmp_path, **fields) as judge:
        await try_out(judge, judge._config, tasks)
    return api, judge


@pytest.mark.parametrize(
    ("status", "answer", "fields", "message"),
    [
        (400, NO_LIMIT, {}, "; set openai_config.max_tokens_name=max_completion_tokens"),
        (422, "no such field: response_format", {}, ""),
        (400, NO_TEMPERATURE, {}, "; set openai_config.temperature=null"),
        (
            400,
            NO_TEMPERATURE,
            {"evaluation": JudgeOverride(temperature=0.0)},
            "; leave out openai_config.evaluation.temperature and set openai_config.temperature=null",
        ),
        (400, "response_format is not known", {}, ""),
        (401, "Incorrect API key", {}, ""),
        (403, "no access", {}, ""),
        (404, "no such model", {}, ""),
    ],
)
async def test_a_refusal_before_the_start_is_one_line_with_the_right_setting(
    tmp_path, status, answer, fields, message
):
    with pytest.raises(ConfigError) as raised:
        await tried(tmp_path, error(status, message=answer), **fields)

    line, reason = str(raised.value), " ".join(answer.split())
    assert line.endswith(f"/v1 refuses what judge-1 is asked ({status}): {reason}{message}")


async def test_a_refusal_without_an_errors_form_is_quoted_in_one_line(tmp_path):
    refusal = web.Response(status=400, text="<html>\n\x1b[2J" + "x" * 10_000)
    with pytest.raises(ConfigError, match=r"\(400\): <html> \\x1b\[2Jx") as raised:
        await tried(tmp_path, refusal)

    assert len(str(raised.value)) < 700 and str(raised.value).isprintable()


@pytest.mark.parametrize("status", [429, 500])
async def test_passing_faults_are_tried_once_and_left_to_the_episodes(tmp_path, status):
    api, _ = await tried(tmp_path, error(status))

    assert len(api.requests) == 1


async def test_nobody_listening_is_left_to_the_episodes(tmp_path):
    async with ModelJudge(config(max_retries=0), tmp_path) as judge:
        await try_out(judge, config(), [TASK])


async def test_one_question_has_the_settings_of_verdicts_and_uses_the_budget(tmp_path):
    api, judge = await tried(tmp_path, completion("hm"), budget_usd=5.0)

    ((_, body),) = api.requests
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge-1", 0.0, 100)
    assert body["response_format"]["json_schema"]["strict"]
    assert spent_usd(tmp_path / "cache" / "spent") == pytest.approx(0.0025) == judge.usage.cost_usd


async def test_each_setting_that_the_tasks_need_is_asked_once(tmp_path):
    models = {name: JudgeOverride(model=name) for name in ("pick", "criterion", "evaluation")}
    rubrics = trajectory(rubrics=["it is short"]).task
    for number, (tasks, fields, wanted) in enumerate(
        [
            ([TASK], models, ["pick", "evaluation"]),
            ([TASK], models | {"max_images": 1}, ["evaluation"]),
            ([TASK, rubrics, rubrics], models, ["pick", "criterion", "evaluation"]),
            ([TASK, rubrics], {}, ["judge-1"]),
        ]
    ):
        folder = tmp_path / str(number)
        api, _ = await tried(folder, completion(APPROVES), tasks=tasks, **fields)
        assert [body["model"] for _, body in api.requests] == wanted
