"""The model judge against a local server that speaks the OpenAI chat API."""

import asyncio
import json
from operator import itemgetter

import pytest
from aiohttp import web

from rl_agent.config.sections.judge import JudgeOverride
from rl_agent.errors import ConfigError, JudgeOutage
from rl_agent.judge import judge as judge_module
from rl_agent.judge.judge import ModelJudge
from tests.unit.judge.judge_api import APPROVES, REJECTS, Api, completion, config, error, judge_at, trajectory


async def judged(tmp_path, *responses, **fields):
    api = Api(*responses)
    async with judge_at(api, tmp_path, **fields) as judge:
        return await judge(trajectory()), api


async def test_an_approved_episode_has_a_reward_with_reason_tokens_and_cost(tmp_path):
    verdict, api = await judged(tmp_path, completion(APPROVES))

    assert verdict.reward == 1.0
    assert verdict.detail == {
        "verdict": "success",
        "reason": "it agrees",
        "criteria": [
            {
                "criterion": "The agent's final answer agrees with the reference answer.",
                "weight": 1.0,
                "verdict": "pass",
                "reason": "it agrees",
                "judge_model": "judge-1",
            }
        ],
        "images": [],
        "judge_model": "judge-1",
        "is_cached": False,
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "cost_usd": pytest.approx(0.0025),
    }
    ((authorization, body),) = api.requests
    assert authorization == "Bearer secret"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge-1", 0.0, 100)


async def test_the_server_says_when_to_come_back(tmp_path):
    loop = asyncio.get_running_loop()
    start = loop.time()
    verdict, _ = await judged(tmp_path, error(429, {"Retry-After": "0.8"}), completion(APPROVES))

    assert verdict.reward == 1.0
    assert loop.time() - start >= 0.8  # the client's own first wait would be 0.5 s at most


async def test_an_outage_is_no_reward_and_is_not_cached(tmp_path):
    api = Api(error(500))
    async with judge_at(api, tmp_path) as judge:
        with pytest.raises(JudgeOutage, match="InternalServerError"):
            await judge(trajectory())
        assert len(api.requests) == 3  # the first and max_retries more
        api.responses = [web.json_response(completion(APPROVES))]
        assert (await judge(trajectory())).reward == 1.0


async def test_a_wrong_key_is_an_outage_at_once(tmp_path):
    api = Api(error(401))
    async with judge_at(api, tmp_path) as judge:
        with pytest.raises(JudgeOutage, match="AuthenticationError"):
            await judge(trajectory())
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    "response",
    [
        web.Response(text="<html>proxy</html>", content_type="text/html"),
        web.Response(text="{oops", content_type="application/json"),
        web.json_response({"choices": []}),
        web.json_response({"choices": None}),
        web.json_response([]),
        web.json_response(completion(["PASS"])),
    ],
)
async def test_an_answer_that_is_no_completion_is_an_outage(tmp_path, response):
    with pytest.raises(JudgeOutage):
        await judged(tmp_path, response)


async def test_nobody_listening_is_an_outage(tmp_path):
    async with ModelJudge(config(max_retries=0), tmp_path) as judge:
        with pytest.raises(JudgeOutage, match="APIConnectionError"):
            await judge(trajectory())


async def test_a_missing_key_is_a_config_error_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ConfigError, match="set the environment variable JUDGE_KEY"):
        async with ModelJudge(config(), tmp_path):
            pass


async def test_half_characters_of_a_judge_can_be_written_down(tmp_path):
    odd = completion('{"reason": "fine \\ud800", "verdict": "PASS"}')
    body = json.dumps(odd)  # as escapes, which is how they come
    verdict, _ = await judged(tmp_path, web.Response(body=body, content_type="application/json"))

    assert verdict.reward == 1.0
    json.dumps(verdict.detail, ensure_ascii=False).encode()


async def test_the_same_question_is_asked_once(tmp_path):
    first, _ = await judged(tmp_path / "a", completion(APPROVES))
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path / "b") as judge:
        await judge(trajectory())
        again = await judge(trajectory())
        other = await judge(trajectory("5"))

    assert len(api.requests) == 2
    assert (again.reward, again.detail["is_cached"], again.detail["cost_usd"]) == (1.0, True, 0.0)
    assert not other.detail["is_cached"]
    assert (judge.usage.verdicts, judge.usage.cached, judge.usage.prompt_tokens) == (3, 1, 2000)
    assert judge.usage.cost_usd == pytest.approx(2 * first.detail["cost_usd"])


async def test_another_model_or_temperature_is_another_question(tmp_path):
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path) as judge:
        for changed in ({}, {"temperature": 0.5}, {"model": "judge-2"}, {}):
            settings = config(base_url=judge._config.base_url, **changed)
            async with ModelJudge(settings, tmp_path / "cache") as other:
                await other(trajectory())

    assert len(api.requests) == 3


async def test_a_number_of_tokens_that_is_null_costs_nothing(tmp_path):
    answer = completion(APPROVES)
    answer["usage"]["prompt_tokens"] = None
    verdict, _ = await judged(tmp_path, answer)
    assert (verdict.reward, verdict.detail["prompt_tokens"]) == (1.0, 0)


async def test_a_damaged_cache_file_is_asked_again_and_replaced(tmp_path):
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path) as judge:
        await judge(trajectory())
        (file,) = (tmp_path / "cache").rglob("*.json")
        file.write_text('{"content": "tr')
        assert (await judge(trajectory())).reward == 1.0
        file.write_text('{"content": 1, "finish_reason": 2, "prompt_tokens": "x", "completion_tokens": null}')
        assert (await judge(trajectory())).reward == 1.0
        assert (await judge(trajectory())).detail["is_cached"]

    assert len(api.requests) == 3
    assert [path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".json"]


async def test_a_disk_that_takes_no_more_does_not_cost_the_verdict(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    verdict, _ = await judged(tmp_path, completion(APPROVES))

    assert verdict.reward == 1.0


async def test_no_more_than_max_concurrency_are_asked_at_once(tmp_path):
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path, max_concurrency=3) as judge:
        verdicts = await asyncio.gather(*(judge(trajectory(str(i))) for i in range(20)))

    assert [verdict.reward for verdict in verdicts] == [1.0] * 20
    assert api.most_at_once <= 3


async def test_evaluation_overrides_the_rest(tmp_path):
    override = JudgeOverride(model="judge-mini", max_tokens=7)
    verdict, api = await judged(tmp_path, completion(APPROVES), evaluation=override)

    body = api.requests[0][1]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("judge-mini", 7, 0.0)
    assert verdict.detail["judge_model"] == "judge-mini"


@pytest.mark.parametrize("answer", [completion("no verdict"), completion(APPROVES, "length")])
async def test_an_answer_without_a_verdict_is_requested_again_then_an_outage(tmp_path, answer):
    api = Api(answer)
    async with judge_at(api, tmp_path) as judge:
        with pytest.raises(JudgeOutage, match="judge-1 gave no evaluation that can be read"):
            await judge(trajectory())
        assert len(api.requests) == 3
        assert judge.usage.cost_usd > 0  # an answer that cannot be read costs all the same
        api.responses = [web.json_response(completion(REJECTS))]
        assert (await judge(trajectory())).reward == 0.0


async def test_a_second_answer_that_can_be_read_is_the_verdict(tmp_path):
    verdict, api = await judged(tmp_path, completion("hm"), completion(APPROVES))

    assert (verdict.reward, len(api.requests)) == (1.0, 2)
    assert verdict.detail["prompt_tokens"] == 2000


RUBRICS = ["the order is placed", {"description": "the address is Main St", "weight": 3}]


async def test_every_criterion_is_judged_and_kept_with_its_reason(tmp_path):
    verdict, api = await judged_on(tmp_path, {"placed": APPROVES, "Main St": REJECTS, "reference": APPROVES})

    assert verdict.reward == 0.0
    assert (verdict.detail["verdict"], verdict.detail["reason"]) == ("failure", "it does not")
    fields = itemgetter("criterion", "weight", "verdict", "reason")
    assert list(map(fields, verdict.detail["criteria"])) == [
        ("the order is placed", 1.0, "pass", "it agrees"),
        ("the address is Main St", 3.0, "fail", "it does not"),
        ("The agent's final answer agrees with the reference answer.", 1.0, "pass", "it agrees"),
    ]
    assert len(api.requests) == 3


async def test_a_weighted_reward_is_the_share_of_the_weights_that_are_met(tmp_path):
    verdicts = {"placed": APPROVES, "Main St": REJECTS, "reference": APPROVES}
    verdict, _ = await judged_on(tmp_path, verdicts, rubric_reward="weighted")

    assert verdict.reward == pytest.approx(2 / 5)


async def test_one_criterion_without_a_verdict_is_an_outage_of_the_whole(tmp_path):
    with pytest.raises(JudgeOutage, match="no criterion that can be read"):
        await judged_on(tmp_path, {"placed": APPROVES, "Main St": "hm", "reference": APPROVES})


async def judged_on(tmp_path, verdicts, **fields):
    """Judge by `RUBRICS`; answers are found by a word of the criterion that is asked."""
    api = Api(completion(APPROVES))

    async def answer(request):
        body = await request.json()
        api.requests.append((None, body))
        criterion = body["messages"][1]["content"].splitlines()[-1]
        (text,) = [text for word, text in verdicts.items() if word in criterion]
        return web.json_response(completion(text))

    api.answer = answer
    async with judge_at(api, tmp_path, **fields) as judge:
        return await judge(trajectory(rubrics=RUBRICS)), api


async def test_each_purpose_has_its_model(tmp_path):
    models = {purpose: JudgeOverride(model=purpose) for purpose in ("criterion", "evaluation")}
    _, api = await judged_on(tmp_path, dict.fromkeys(("placed", "Main St", "reference"), APPROVES), **models)

    assert sorted(body["model"] for _, body in api.requests) == ["criterion", "criterion", "evaluation"]


async def test_the_form_of_the_answer_is_asked_for_where_the_server_takes_it(tmp_path):
    _, api = await judged(tmp_path / "a", completion(APPROVES))
    _, plain = await judged(tmp_path / "b", completion(APPROVES), structured_output=False)

    form = api.requests[0][1]["response_format"]
    assert form["json_schema"]["schema"]["properties"]["verdict"]["enum"] == ["PASS", "FAIL"]
    assert "response_format" not in plain.requests[0][1]


async def test_a_budget_that_cannot_be_kept_for_want_of_usage_stops_the_rollout(tmp_path):
    api = Api(completion(APPROVES) | {"usage": None})
    async with judge_at(api, tmp_path, budget_usd=5.0) as judge:
        with pytest.raises(ConfigError, match=r"budget_usd: http.* does not say how many tokens"):
            await judge(trajectory())


async def test_a_model_is_sent_no_temperature_and_its_name_of_the_limit(tmp_path):
    api = Api(completion(APPROVES))
    fields = {"temperature": None, "max_tokens_name": "max_completion_tokens"}
    async with judge_at(api, tmp_path, **fields) as judge:
        await judge(trajectory())

    _, body = api.requests[0]
    assert "max_completion_tokens" in body and not {"temperature", "max_tokens"} & body.keys()


async def test_a_spent_budget_stops_this_rollout_and_the_next_in_one_line(tmp_path):
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path, budget_usd=0.004) as judge:
        await judge(trajectory("4"))
        await judge(trajectory("5"))  # 0.0025 each
        with pytest.raises(ConfigError, match=r"openai_config\.budget_usd=0\.004 is spent \(\$0\.0050\)"):
            await judge(trajectory("6"))
        assert (await judge(trajectory("4"))).detail["is_cached"]  # what is known costs nothing
        with pytest.raises(ConfigError, match="continue with --resume"):
            async with ModelJudge(judge._config, tmp_path / "cache") as after:
                await after(trajectory("7"))

    assert len(api.requests) == 2


async def test_an_api_that_hangs_is_an_outage_after_its_time(tmp_path):
    api = Api(completion(APPROVES))
    released = asyncio.Event()

    async def hang(request):
        api.requests.append((None, await request.json()))
        await released.wait()
        return web.json_response(completion(APPROVES))

    api.answer = hang
    async with judge_at(api, tmp_path, timeout_s=0.2, max_retries=1) as judge:
        with pytest.raises(JudgeOutage, match="APITimeoutError"):
            await judge(trajectory())
        released.set()

    assert len(api.requests) == 2


async def test_an_answer_that_drips_without_end_is_an_outage(tmp_path, monkeypatch):
    api = Api(completion(APPROVES))

    async def drip(request):
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        while True:
            await stream.write(b" ")
            await asyncio.sleep(0.05)

    api.answer = drip
    monkeypatch.setattr(judge_module, "_LONGEST_PAUSE_S", 0.2)
    async with judge_at(api, tmp_path, timeout_s=0.3, max_retries=0) as judge:
        with pytest.raises(JudgeOutage, match="no whole answer"):
            await judge(trajectory())
