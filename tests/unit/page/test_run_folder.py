"""The numbers of a run are read as its files grow."""

from rl_agent.monitor import metrics
from rl_agent.page.run_folder import MAX_POINTS, RunFolder
from rl_agent.paths import RunPaths
from tests.unit.page.run_files import lines, write_run


async def test_files_of_another_shape_are_passed_over(tmp_path, look):
    paths = RunPaths(tmp_path)
    paths.metrics.write_bytes(
        b'{"iteration": "x"}\n[1]\nno json\n{"iteration": 1, "test/success_rate": "high"}\n'
        b'{"iteration": 2, "test/success_rate": 0.5}\n{"iteration": 3, "test/succ'
    )
    paths.timeline.write_text('{"name": 1}\n{"name": "a", "iteration": 1, "start": "x", "end": 2}\n')
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    (tmp_path / "runs" / "latest" / "plan.json").write_text("[" * 100_000)
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
