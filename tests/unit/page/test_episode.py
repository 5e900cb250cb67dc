"""One episode as the page draws it, and which files of a host it may show."""

import re
from dataclasses import replace

import pytest
from yarl import URL

from rl_agent.types import Observation
from tests.unit.page.stores import address, keep_bytes, keep_png, record, text_of, until_indexed
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize("suffix", [".svg", ".html"])
async def test_only_what_is_named_as_an_image_is_sent_as_one(paths, look, suffix):
    name = keep_bytes(paths, SVG, suffix)
    client = await look(paths.log_path)
    answer = await client.get(f"/runs/log/images/{name[-(67 + len(suffix)) :]}")
    assert answer.status == 404 and b"alert" not in await answer.read()


@pytest.mark.parametrize(
    "tail",
    [
        "../secret.png",
        "..%2fsecret.png",
        "%2e%2e/secret.png",
        "a/../../secret.png",
        "/etc/passwd",
        "link.png",
        "a%00.png",
    ],
)
async def test_no_file_outside_of_the_run_s_images_is_ever_sent(paths, look, tail):
    paths.images.mkdir()
    secret = paths.log_path / "secret.png"
    secret.write_bytes(b"\x89PNG\r\n\x1a\nsecret")
    (paths.images / "link.png").symlink_to(secret)
    client = await look(paths.log_path)
    answer = await client.get(URL(f"/runs/log/images/{tail}", encoded=True), allow_redirects=False)
    assert answer.status in (403, 404) and b"secret" not in await answer.read()


async def test_an_episode_may_name_files_of_the_host_and_none_is_shown(paths, look):
    outside = paths.log_path.parent / "images"
    outside.mkdir()
    (outside / "mine.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    record(paths, 1, make_trajectory(0, steps=(make_step(images=(str(outside / "mine.png"), "/etc/hosts")),)))
    client = await look(paths.log_path)
    await until_indexed(client)
    html = await text_of(client, address())
    assert "<img" not in html and "2 recorded images are not in this folder" in html


async def test_a_copied_folder_shows_its_own_images(paths, look, tmp_path):
    name = keep_png(paths)
    record(paths, 1, make_trajectory(0, steps=(replace(make_step(), observation=Observation("x", (name,))),)))
    moved = tmp_path / "elsewhere" / "log"
    moved.parent.mkdir()
    paths.log_path.rename(moved)
    client = await look(moved)
    await until_indexed(client)
    html = await text_of(client, address())
    shown = re.search(r'src="(/runs/log/images/[^"]+)"', html)[1]
    assert (await client.get(shown)).status == 200
