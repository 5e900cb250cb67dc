"""The judge sees images of an episode, a choice of them, in order."""

import base64
import json
from dataclasses import replace

import pytest

from rl_agent.config.sections.judge import JudgeOverride
from rl_agent.errors import JudgeOutage
from rl_agent.types import Observation
from tests.unit.judge.judge_api import APPROVES, Api, completion, judge_at, trajectory


def visual(tmp_path, *counts):
    """An episode whose steps show so many images; image k holds the bytes `image k`, counted from 1."""
    base, paths, number = trajectory(), [], 0
    for count in counts:
        paths.append([])
        for _ in range(count):
            number += 1
            path = tmp_path / f"screen {number}.{'png' if number % 2 else 'jpg'}"
            path.write_bytes(f"image {number}".encode())
            paths[-1].append(str(path))
    steps = tuple(replace(base.steps[0], observation=Observation("see", tuple(of_step))) for of_step in paths)
    return replace(base, steps=steps)


async def prompt_of(tmp_path, episode, **fields):
    """The user's part of the request that the judge got."""
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path, **fields) as judge:
        verdict = await judge(episode)
    assert verdict.reward == 1.0
    return api.requests[0][1]["messages"][1]["content"]


def document_of(text):
    """The JSON between the lines of the fence."""
    return json.loads(text.partition("\n")[2].rpartition("\nEND EVIDENCE")[0])


async def test_images_are_sent_as_data_urls_after_the_transcript_naming_them(tmp_path):
    evidence, *parts, question = await prompt_of(tmp_path, visual(tmp_path, 1, 0, 1))

    transcript = document_of(evidence["text"])["transcript"]
    assert [step["images"] for step in transcript] == [["image 1"], [], ["image 2"]]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url"]
    assert [part["text"] for part in parts[::2]] == ["image 1", "image 2"]
    urls = [part["image_url"]["url"] for part in parts[1::2]]
    assert [url.partition(",")[0] for url in urls] == ["data:image/png;base64", "data:image/jpeg;base64"]
    assert [base64.b64decode(url.partition(",")[2]) for url in urls] == [b"image 1", b"image 2"]
    assert "criterion" in json.loads(question["text"])


def images_in(body):
    parts = (part for part in body["messages"][1]["content"] if part["type"] == "image_url")
    return [base64.b64decode(part["image_url"]["url"].partition(",")[2]).decode() for part in parts]


async def test_of_many_images_the_judge_picks_some_and_the_last_is_always_there(tmp_path):
    picks = [completion('{"images": [7, 2]}'), completion('{"images": [9]}')]  # of 1 to 8, of 9 to 11
    api = Api(*picks, completion(APPROVES))
    async with judge_at(api, tmp_path, max_images=3, pick=JudgeOverride(model="cheap")) as judge:
        verdict = await judge(visual(tmp_path, *[1] * 12))

    bodies = [body for _, body in api.requests]
    assert [body["model"] for body in bodies] == ["cheap", "cheap", "judge-1"]
    assert [images_in(body) for body in bodies] == [
        [f"image {number}" for number in range(1, 9)],
        [f"image {number}" for number in range(9, 12)],
        ["image 7", "image 9", "image 12"],  # of three picks the latest two fit beside the last image
    ]
    assert verdict.detail["images"] == ["image 7", "image 9", "image 12"]
    transcript = document_of(bodies[2]["messages"][1]["content"][0]["text"])["transcript"]
    assert transcript[1]["images"] == ["image 2 (not shown)"]


async def test_a_choice_that_cannot_be_read_is_an_outage(tmp_path):
    api = Api(completion('{"images": [99]}'))
    async with judge_at(api, tmp_path, max_images=2) as judge:
        with pytest.raises(JudgeOutage, match="gave no pick that can be read: no list of images"):
            await judge(visual(tmp_path, 1, 1, 1))


@pytest.mark.parametrize(
    ("limit", "shown"), [(0, []), (1, ["image 3"]), (3, ["image 1", "image 2", "image 3"])]
)
async def test_nothing_is_picked_where_there_is_no_choice(tmp_path, limit, shown):
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path, max_images=limit) as judge:
        verdict = await judge(visual(tmp_path, 1, 1, 1))

    assert len(api.requests) == 1
    assert verdict.detail["images"] == shown


async def test_an_image_that_cannot_be_read_is_an_outage_and_asks_nobody(tmp_path):
    episode = visual(tmp_path, 1)
    (tmp_path / "screen 1.png").unlink()
    api = Api(completion(APPROVES))

    async with judge_at(api, tmp_path) as judge:
        with pytest.raises(JudgeOutage, match=r"screen 1\.png.*No such file"):
            await judge(episode)

    assert api.requests == []


async def test_the_cache_tells_images_apart_by_what_they_show(tmp_path):
    episode = visual(tmp_path, 1)
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path) as judge:
        verdicts = [await judge(episode), await judge(episode)]
        (tmp_path / "screen 1.png").write_bytes(b"another")
        verdicts.append(await judge(episode))

    assert [verdict.detail["is_cached"] for verdict in verdicts] == [False, True, False]
