"""A folder is read as it grows; what is wrong in it, half copied or deleted, costs itself alone."""

import asyncio
import shutil

import pytest

from rl_agent.monitor import metrics
from rl_agent.page.run_folder import MAX_POINTS, RunFolder
from rl_agent.paths import RunPaths
from tests.unit.page.run_files import lines, write_run
from tests.unit.page.stores import address, attempts, keep_png, record, until_indexed
from tests.unit.page.test_pool_view import sample, write_history
from tests.unit.page.test_trajectory_views import is_harmless
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

VIEWS = ("/runs/log/", "/runs/log/episodes", "/runs/log/pool", address(), address(view="group"), "/compare")


def write_all(paths: RunPaths) -> None:
    metrics.append(paths.metrics, {"iteration": 1, "split": "test", "test/success_rate": 0.5})
    paths.timeline.write_text('{"name": "rollout", "iteration": 1, "start": 1.0, "end": 2.0}\n')
    write_history(paths.log_path, sample(1.0), sample(2.0))
    (paths.log_path / "runs" / "latest" / "plan.json").write_text("{}")
    record(paths, 1, *attempts(0, [0.0, 1.0]))
    record(paths, 2, make_trajectory(1, iteration=2))


async def answers(client) -> dict[str, int]:
    """The status of each view; one that hangs fails."""
    async with asyncio.timeout(90):
        return {view: (await client.get(view)).status for view in VIEWS}


@pytest.mark.parametrize(
    "named",
    ["/etc/passwd", "../../../etc/passwd", "images/../../secret.png", "images/link.png", "images/folder.png"],
)
async def test_an_image_elsewhere_is_never_shown_whatever_a_line_names(paths, look, tmp_path, named):
    secret = keep_png(RunPaths(tmp_path / "elsewhere"), colour="black")
    shutil.copyfile(secret, tmp_path / "secret.png")
    keep_png(paths)
    (paths.images / "link.png").symlink_to(secret)
    (paths.images / "folder.png").symlink_to(tmp_path / "elsewhere")
    record(paths, 1, make_trajectory(0, steps=(make_step(images=(named, secret)),)))
    client = await look(paths.log_path)
    await until_indexed(client)
    html = await (await client.get(address())).text()
    assert "<img" not in html and "2 recorded images are not in this folder." in html and is_harmless(html)
    tail = named.removeprefix("images/")
    for path in (tail, tail.replace("/", "%2f"), f"..%2f{tail}", secret):
        assert (await client.get(f"/runs/log/images/{path}")).status == 404


async def test_a_run_that_is_half_copied_shows_what_is_there(paths, look):
    write_all(paths)
    first = paths.shard("train", 1)
    first.write_bytes(first.read_bytes()[:-200])  # in the middle of its last line
    paths.shard("train", 2).unlink()  # its manifest came first
    paths.metrics.write_bytes(paths.metrics.read_bytes() + b'{"iteration": 2, "te')
    shutil.rmtree(paths.log_path / "runs")
    client = await look(paths.log_path)
    html = await until_indexed(client)
    assert "task-0:0:0" in html and "task-0:0:1" not in html and 'class="bad"' not in html
    assert set((await answers(client)).values()) == {200}


async def test_words_of_a_megabyte_without_a_space_are_found_and_shown_in_part(paths, look):
    long = "x" * 2**20
    step = make_step(long, observation=long)
    trajectory = make_trajectory(0, steps=(step,), system_prompt=long)
    record(paths, 1, trajectory, make_trajectory(1))
    metrics.append(paths.metrics, {"iteration": 1, "train/commonest_failures": [long]})
    client = await look(paths.log_path)
    await until_indexed(client)
    for view in VIEWS:
        answer = await client.get(view)
        assert answer.status == 200 and len(await answer.text()) < 2 * 2**20, view
    assert "task-1:0:0" in await until_indexed(client, "/runs/log/episodes?text=eos")


async def test_damaged_lines_are_passed_over(tmp_path, look):
    paths = RunPaths(tmp_path)
    paths.metrics.write_bytes(
        b'no json\n{"iteration": 2, "test/success_rate": 0.5}\n{"iteration": 3, "test/succ'
    )
    paths.timeline.write_text('{"name": "a", "iter\n')
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    (tmp_path / "runs" / "latest" / "plan.json").write_text("{")
    client = await look(tmp_path)
    answer = await client.get("/")
    assert answer.status == 200 and "evaluation: 0.500 at iteration 2" in await answer.text()


def test_lines_are_read_as_the_file_grows_and_anew_when_it_is_replaced(tmp_path):
    paths = write_run(tmp_path, {"iteration": 1, "test/success_rate": 0.25})
    run = RunFolder("run", tmp_path)
    assert list(run.numbers().rows) == [1]
    with paths.metrics.open("a") as file:
        file.write('{"iteration": 2, "test/su')
        file.flush()
        assert list(run.numbers().rows) == [1]
        file.write('ccess_rate": 0.5}\n')
        file.flush()
        assert list(run.numbers().rows) == [1, 2]
    paths.metrics.unlink()
    metrics.append(paths.metrics, {"iteration": 9})
    assert list(run.numbers().rows) == [9]
    inode = paths.metrics.stat().st_ino  # which a new file gets that takes a deleted one's place
    paths.metrics.write_text(lines({"iteration": 10, "test/success_rate": 0.5}, {"iteration": 11}))
    assert paths.metrics.stat().st_ino == inode
    assert list(run.numbers().rows) == [10, 11]


def test_a_long_run_keeps_a_bounded_number_of_points(tmp_path):
    steps = MAX_POINTS * 2 + 100
    RunPaths(tmp_path).metrics.write_text(
        lines(*({"iteration": 1, "update_step": n, "update_step/loss": 1 / (n + 1)} for n in range(steps)))
    )
    points = RunFolder("run", tmp_path).numbers().points["update_step", "update_step/loss"]
    assert MAX_POINTS / 3 < len(points) <= MAX_POINTS and max(points) == steps - 1
