"""Images of a chat, taken out of it, or refused in one line."""

import base64
import hashlib
import json

import pytest
from aiohttp import web

from rl_agent.engine.packed import ImageContent
from rl_agent.pool.api.chat_images import take_images

FIRST, SECOND = b"\x89PNG one", b"\xff\xd8 two"


def data(content, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def chat(*parts):
    return {"messages": [{"role": "system", "content": "See."}, {"role": "user", "content": list(parts)}]}


def test_images_leave_the_chat_in_order_and_their_names_stay():
    text = {"type": "text", "text": "Look"}
    shown = (
        {"type": "image_url", "image_url": {"url": data(FIRST), "detail": "low"}},
        text,
        {"type": "input_image", "image_url": data(SECOND, "jpeg"), "uuid": "a name of the client's"},
        {"type": "image_url", "image_url": {"url": data(FIRST)}},
    )
    given = chat(*shown) | {"seed": 1}
    named, images = take_images(given)
    digests = [hashlib.sha256(content).hexdigest() for content in (FIRST, SECOND, FIRST)]
    assert images == [
        ImageContent(digest, content) for digest, content in zip(digests, (FIRST, SECOND, FIRST), strict=True)
    ]
    first, second, third = ({"type": "image_url", "image_url": None, "uuid": digest} for digest in digests)
    assert named == chat(first, text, second, third) | {"seed": 1}
    assert given == chat(*shown) | {"seed": 1}, "the client's own is as it was"


@pytest.mark.parametrize("messages", [None, 5, [5], [{"content": None}], [{"content": ["Look"]}], [{}]])
def test_a_chat_without_images_is_left_as_it_is(messages):
    assert take_images({"messages": messages}) == ({"messages": messages}, [])


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "https://host/a.png"}}, "no address is followed"),
        ({"type": "video_url", "video_url": {"url": "https://host/a.mp4"}}, "not 'video_url'"),
        ({"type": "text", "text": "Hi", "uuid": "u", "video_url": "https://host"}, "not 'text'"),
        ({"image_pil": None}, "not 'None'"),
    ],
)
def test_other_media_and_addresses_are_refused_by_place(part, words):
    with pytest.raises(web.HTTPException) as caught:
        take_images(chat({"type": "text", "text": "Look"}, part))
    error = json.loads(caught.value.text)["error"]
    assert (error["code"], error["param"]) == (400, "messages")
    assert error["message"].startswith("messages[1].content[1]") and words in error["message"]
    assert "\n" not in error["message"]
