"""Images in messages themselves: written of files, and read."""

import base64
import hashlib

import pytest

from rl_agent.engine.image_content import inlined, read_image_part
from rl_agent.engine.packed import ImageContent


def test_a_file_that_is_inlined_is_read_again(tmp_path):
    content = b"\x89PNG pixels"
    (tmp_path / "a b.png").write_bytes(content)
    named = {"type": "image_url", "image_url": {"url": (tmp_path / "a b.png").as_uri()}}
    (message,) = inlined([{"role": "user", "content": [named]}])
    image = ImageContent(hashlib.sha256(content).hexdigest(), content)
    assert read_image_part(message["content"][0]) == image
    data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    assert read_image_part({"type": "input_image", "image_url": data}) == image


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ({"url": "https://host/a.png"}, "no address is followed"),
        ({"url": "file:///etc/passwd"}, "no address is followed"),
        ({"url": "data:text/plain;base64,aGk="}, "no address is followed"),
        ({}, "no address is followed"),
        (None, "no address is followed"),
        ({"url": "data:image/png;base64,"}, "the image is empty"),
        ({"url": "data:image/png;base64,a*b"}, "no base64"),
        ({"url": "data:image/png;base64,\u00e9"}, "no base64"),
    ],
)
def test_what_is_no_data_url_of_an_image_is_refused(address, words):
    with pytest.raises(ValueError, match=f"image_url: .*{words}"):
        read_image_part({"type": "image_url", "image_url": address})
