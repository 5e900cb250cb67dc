"""The page in a real Chromium equals the files: time, cost, verdict, tokens, calls, judge, pool."""

import json
import re
import time

import pytest

from rl_agent.page.tokens import STEPS
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import to_json
from tests.integration.page.made import (
    CALL,
    CAME,
    CRITERIA,
    ENGINES,
    JUDGE,
    LOGPROBS,
    MACHINES,
    MOVES,
    REWARDS,
    SPANS,
    STATES,
    SUCCESS,
    WANTED,
    judged_episode,
    window_episodes,
)

RUN, POOL = "/runs/log/", "/runs/log/pool"
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


def test_runs_are_compared_in_one_diagram_with_the_figures_of_each(visit):
    page = visit("/compare")
    chart = page.locator("figure", has_text="evaluation").first
    words = chart.locator("circle title").all_text_contents()
    assert words == [
        f"{name}: {value:.3f} at iteration {n}"
        for name, curve in SUCCESS.items()
        for n, value in enumerate(curve, 1)
    ]
    places = boxes(chart.locator("circle"))
    values = [value for curve in SUCCESS.values() for value in curve]
    low, high = (values.index(limit(values)) for limit in (min, max))
    scale = (places[low]["y"] - places[high]["y"]) / (values[high] - values[low])
    for place, value in zip(places, values, strict=True):
        assert place["y"] == pytest.approx(places[low]["y"] - (value - values[low]) * scale, abs=1.5)
    figures = rows(page.get_by_role("region", name="newest figures of each run"))
    assert [(row[0], row[3], row[-1]) for row in figures] == [
        ("log", "0.875", f"${sum(MACHINES) + JUDGE:.2f}"),
        ("other", "0.812", "-"),
    ]


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
        titles = tokens.evaluate_all("all => all.map(one => one.title)")
        for words, logprob, version, engine in zip(titles, LOGPROBS, versions, engines, strict=True):
            assert f"logprob {logprob:.3f}, version {version}, {engine} (" in words
        legend = page.locator("p.legend span")
        shown = legend.evaluate_all(
            "all => all.map(one => [one.textContent, getComputedStyle(one).borderBottomColor])"
        )
        if colouring != "logprob":
            named = {label.removeprefix("version ").split(" (")[0]: colour for label, colour in shown}
            assert {
                (str(value), colour) for value, colour in zip(kind, colours, strict=True)
            } <= named.items()


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


def test_the_pool_shows_engines_over_time_bytes_by_transport_and_moves(visit):
    page = visit(POOL)
    spans, named = [], {}
    for name in dict.fromkeys(name for name, *_ in STATES):
        own = [each for each in STATES if each[0] == name]
        for (_, state, at, reason), until in zip(own, [*(each[2] for each in own[1:]), 160.0], strict=True):
            if state != "gone":
                spans.append((at, until))
                named[f"{name} {state}{f': {reason}' if reason else ''}"] = until - at
    lanes = page.locator(".gantt rect")
    assert_lies_on_one_scale(boxes(lanes), spans)
    titles = lanes.locator("title").all_text_contents()
    assert [title.rpartition(",")[0] for title in titles] == list(named)
    changes = page.locator("table", has=page.get_by_role("columnheader", name="reason"))
    assert [(row[2], row[3], row[5]) for row in rows(changes)] == [
        (name, state, reason) for name, state, _, reason in reversed(STATES)
    ]
    wanted = page.get_by_role("region", name="engines wanted, and why")
    assert [(row[2], row[-1]) for row in rows(wanted)] == [
        (f"{count} spot", reason) for _, count, reason in reversed(WANTED)
    ]
    ready = page.locator("figure", has_text="engines that are ready").locator("circle title")
    assert [each for each in ready.all_text_contents() if each.startswith("ready")] == [
        "ready: 2 at minute 0.500", "ready: 1 at minute 1"
    ]  # fmt: skip
    assert [each.split(" at ")[0] for each in ready.all_text_contents() if each.startswith("wanted")] == [
        "wanted: 1", "wanted: 1", "wanted: 2", "wanted: 2"
    ]  # fmt: skip
    assert [row[1] for row in rows(page.locator("#weight-bytes"))] == [f"{n:,}" for n in CAME.values()]
    assert [row[2:6] for row in rows(page.locator("#moves"))] == [
        [each["moved"], each["from"] or "an earlier manager", each["to"], f"{each['tokens']:,}"]
        for each in reversed(MOVES)
    ]
