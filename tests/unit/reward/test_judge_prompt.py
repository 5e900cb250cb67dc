"""What the judge sees of an episode with images."""

import base64
import json
from dataclasses import replace

import pytest

from rl_agent.errors import JudgeOutage
from rl_agent.types import Observation
from tests.unit.reward.judge_api import APPROVES, Api, completion, judge_at, trajectory


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


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


async def asked(tmp_path, episode, **fields):
    """The user's part of the request that the judge got."""
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path, **fields) as judge:
        verdict = await judge(episode)
    assert verdict.reward == 1.0
    return api.requests[0][1]["messages"][1]["content"]


async def test_images_are_sent_as_data_urls_behind_the_transcript_that_names_them(tmp_path):
    document, *parts = await asked(tmp_path, visual(tmp_path, 1, 0, 1))

    transcript = json.loads(document["text"])["transcript"]
    assert [step["images"] for step in transcript] == [["image 1"], [], ["image 2"]]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url"]
    assert [part["text"] for part in parts[::2]] == ["image 1", "image 2"]
    urls = [part["image_url"]["url"] for part in parts[1::2]]
    assert [url.partition(",")[0] for url in urls] == ["data:image/png;base64", "data:image/jpeg;base64"]
    assert [base64.b64decode(url.partition(",")[2]) for url in urls] == [b"image 1", b"image 2"]


async def test_of_many_images_the_last_are_sent_and_the_others_named_as_not_shown(tmp_path):
    document, *parts = await asked(tmp_path, visual(tmp_path, 2, 1), max_images=2)

    transcript = json.loads(document["text"])["transcript"]
    assert [step["images"] for step in transcript] == [["not shown", "image 1"], ["image 2"]]
    images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert [base64.b64decode(url.partition(",")[2]) for url in images] == [b"image 2", b"image 3"]


async def test_with_no_image_allowed_the_judge_reads_that_there_were_some(tmp_path):
    document = await asked(tmp_path, visual(tmp_path, 2), max_images=0)

    assert json.loads(document)["transcript"][0]["images"] == ["not shown", "not shown"]


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
