"""The page in a real Chromium equals the files: time, cost, verdict, tokens, calls, judge."""

import json
import re
import time

import pytest

from rl_agent.page.tokens import STEPS
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import to_json
from tests.integration.page.made import (
    CALL,
    CRITERIA,
    ENGINES,
    JUDGE,
    LOGPROBS,
    MACHINES,
    REWARDS,
    SPANS,
    judged_episode,
    window_episodes,
)

RUN = "/runs/log/"
JUDGED = "/runs/log/episode?split=train&iteration=1&task=task-5&group=0&attempt=0"
WINDOW = "/runs/log/episode?split=train&iteration=1&task=task-0&group=0&attempt=0"


def texts(place) -> list[str]:
    return [text.strip() for text in place.all_inner_texts()]


def rows(place) -> list[list[str]]:
    """The cells of a table's body, as they are read."""
    return [texts(row.locator("th, td")) for row in place.locator("tbody tr").all()]


def boxes(place) -> list[dict[str, float]]:
    return [element.bounding_box() for element in place.all()]


def assert_lies_on_one_scale(bars: list[dict[str, float]], times: list[tuple[float, float]]) -> None:
    """Every bar begins and ends where its time says, by the scale of the first and the last of them."""
    (begin, _), (_, end) = min(times), max(times, key=lambda period: period[1])
    left, right = min(bar["x"] for bar in bars), max(bar["x"] + bar["width"] for bar in bars)
    scale = (right - left) / (end - begin)
    for bar, (start, until) in zip(bars, times, strict=True):
        assert bar["x"] == pytest.approx(left + (start - begin) * scale, abs=2)
        assert bar["width"] == pytest.approx((until - start) * scale, abs=2)


def test_phases_follow_the_timeline_and_the_cost_is_the_sum_paid(visit):
    page = visit(RUN)
    in_rows = sorted(SPANS, key=lambda span: [each[0] for each in SPANS].index(span[0]))
    bars = page.locator(".gantt rect")
    assert_lies_on_one_scale(boxes(bars), [span[2:] for span in in_rows])
    titles = page.locator(".gantt rect title").all_text_contents()
    assert [title.partition(":")[0] for title in titles] == [
        f"{name}, iteration {number}" for name, number, *_ in in_rows
    ]
    table = page.get_by_role("region", name="seconds by kind of work")
    total = SPANS[-1][3] - SPANS[0][2]
    spent = {name: [s[3] - s[2] for s in SPANS if s[0] == name] for name in ("rollout", "update")}
    assert [[row[0], row[1], row[2], row[4]] for row in rows(table)] == [
        [name, str(len(s)), f"{sum(s):.1f}", f"{100 * sum(s) / total:.0f} %"] for name, s in spent.items()
    ]
    tile = page.locator(".tiles > div", has_text="cost so far")
    assert texts(tile.locator("dd")) == [
        f"${sum(MACHINES) + JUDGE:,.2f}",
        f"machines ${sum(MACHINES):,.2f}, judge ${JUDGE:,.2f}",
    ]


def test_the_verdict_of_doctor_comes_first_when_something_is_wrong(visit):
    page = visit(RUN)
    alarm, deadline = page.locator("main > section").first, time.monotonic() + 30
    while alarm.get_attribute("class") != "alarm":  # doctor looks meanwhile
        assert time.monotonic() < deadline
        page.wait_for_timeout(200)
        page.reload()
    assert texts(alarm.locator("li")) == [
        "correct what the reason names; then the same command with --resume goes on"
    ]
    assert "ended with status 1: the disk is full" in page.locator("pre.lines").inner_text()
    box = alarm.bounding_box()
    assert box["y"] + box["height"] < 450
    assert all(box["y"] < other["y"] for other in boxes(page.locator("main > section"))[1:])


def turns_in(words: str, what: str) -> list[int]:
    """The turns of which the page says that the context had them in this way."""
    numbers = re.search(rf"turns? (\d+)(?: to (\d+))? {what}", words)
    return list(range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1)) if numbers else []


@pytest.mark.parametrize("view", [WINDOW, JUDGED])
def test_each_turn_says_what_the_window_left_out(visit, runs, view):
    episode = judged_episode() if view == JUDGED else window_episodes(RunPaths(runs[0]))[0]
    page = visit(view)
    for number, step in enumerate(episode.steps):
        turn, whole = page.locator(f"#turn-{number}"), min(step.seen.whole_from, number)
        words = " ".join(texts(turn.locator(".context")))
        gone = whole - step.seen.as_lines
        assert turns_in(words, "left out") == list(range(gone)), words
        assert turns_in(words, "as one line each") == list(range(gone, whole)), words
        if whole:
            assert turns_in(words, "whole") == list(range(whole, number)), words
        summaries = [compaction.generation.text for compaction in step.seen.compactions]
        assert texts(turn.locator("pre"))[: len(summaries)] == summaries


def test_tokens_have_the_colour_of_their_logprob_version_or_engine(visit):
    page = visit(JUDGED)
    generation = judged_episode().steps[-1].generation
    versions = [s.weight_version for s in generation.spans for _ in range(s.tokens)]
    engines = [ENGINES[s.engine] for s in generation.spans for _ in range(s.tokens)]
    kinds = {
        "logprob": [sum(value < step for step in STEPS) for value in LOGPROBS],
        "version": versions,
        "engine": engines,
    }
    for colouring, kind in kinds.items():
        page.get_by_role("link", name=colouring, exact=True).click()
        page.wait_for_url(f"**tokens={colouring}")
        tokens = page.locator("#turn-3 .tokens span")
        assert texts(tokens) == [f"#{value}" for value in generation.token_ids]
        colours = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).borderBottomColor)")
        assert len(set(zip(kind, colours, strict=True))) == len(set(kind)) == len(set(colours))


def test_a_tool_call_is_unfolded_and_the_judge_is_quoted_by_criterion(visit):
    page = visit(JUDGED)
    call = page.locator("#turn-3 dl.call > div")
    shown = {texts(each.locator("dt"))[0]: texts(each.locator("dd"))[0] for each in call.all()}
    assert shown.pop("tool") == CALL["name"]
    read = {name: text if name == "words" else json.loads(text) for name, text in shown.items()}
    assert read == CALL["arguments"]
    judge = page.locator("section", has=page.get_by_role("heading", name="Judge"))
    assert texts(judge.locator("dd")) == ["partly by judge-1", "One of two."]
    assert rows(judge) == [[str(value) for value in each.values()] for each in CRITERIA]


def test_selected_episodes_are_exported_as_the_store_has_them(visit, runs):
    page = visit("/runs/log/episodes?reward_min=0.2&task_id=task-0")
    assert page.locator("#total").inner_text() == "2"
    with page.expect_download() as download:
        page.get_by_role("link", name="export as jsonl").click()
    exported = download.value.path().read_bytes().splitlines()
    kept = [episode for episode in window_episodes(RunPaths(runs[0])) if episode.reward >= 0.2]
    assert len(kept) == sum(reward >= 0.2 for reward in REWARDS)
    assert sorted(exported) == sorted(map(to_json, kept))
