"""The master of a rollout: what is on the disk counts once, what is missing is run, then it is finished."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import ConfigError, NothingCompleted, RetryLater, StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.shard import read_header
from rl_agent.types import Status
from tests.unit.rollout.master_rollouts import (
    COLDER,
    CONDITIONS,
    HEADER,
    OTHER_RUN,
    SIZE,
    FakeWork,
    Part,
    manifest,
    names,
    run_master,
    write,
)
from tests.unit.rollout.trajectories_made import make_trajectory, seeds_of


async def test_one_node_leaves_one_file_and_a_manifest(paths):
    account, work = await run_master(paths)

    assert account == "submitted=12 completed=12 failed=0 timed_out=0 abandoned=0"
    assert names(paths) == ["", ".manifest.json"]
    size_bytes = paths.shard("train", 1).stat().st_size
    assert manifest(paths) == {"": {"rank": 0, "bytes": size_bytes, "episodes": 12, "damaged": 0}}
    assert seeds_of(paths) == list(range(SIZE))
    assert work.is_closed
    assert work.terms == ("abc", 0)


async def test_an_iteration_without_a_reward_is_recorded_and_ends_the_run(paths):
    with pytest.raises(NothingCompleted) as ended:
        await run_master(paths, status=Status.FAILED)

    assert str(ended.value) == (
        "train iteration 1: none of 12 episodes has a reward: 12 x EnvironmentFailure: reset failed;"
        f" tracebacks: {paths.log_path / 'environments.log'}"
    )
    assert "ValueError: of a user" in (paths.log_path / "environments.log").read_text()
    assert manifest(paths)[""]["episodes"] == SIZE
    assert json.loads(paths.metrics.read_text())["episodes"] == SIZE


async def test_the_numbers_are_those_of_all_files(paths):
    write(paths.checkpoint_shard("train", 1, rank=1), 3, 4)
    await run_master(paths, resume=True, num_nodes=3)
    assert json.loads(paths.metrics.read_text())["episodes"] == SIZE


async def test_a_resume_runs_only_what_no_file_of_the_run_holds(paths):
    write(paths.checkpoint_shard("train", 1), 0, 1, torn=b"{")
    write(paths.checkpoint_shard("train", 1, rank=1), 1, 2, torn=to_line(make_trajectory(5))[:-1])
    write(paths.checkpoint_shard("train", 1, rank=2), 3, header=OTHER_RUN)
    paths.checkpoint_shard("train", 1, rank=3).touch()
    size_bytes = paths.checkpoint_shard("train", 1, rank=1).read_bytes().rfind(b"\n") + 1

    account, work = await run_master(paths, resume=True)

    assert account == "submitted=12 completed=12 failed=0 timed_out=0 abandoned=0"
    assert work.published == list(range(3, SIZE))
    own_bytes = paths.shard("train", 1).stat().st_size
    assert manifest(paths) == {
        "": {"rank": 0, "bytes": own_bytes, "episodes": 11, "damaged": 0},
        "_rank_1": {"rank": 1, "bytes": size_bytes, "episodes": 2, "damaged": 0},
    }
    assert sorted(seeds_of(paths)) == list(range(SIZE))


async def test_a_resume_with_everything_on_the_disk_only_finishes(paths):
    write(paths.checkpoint_shard("train", 1, rank=1), *range(SIZE))
    _, work = await run_master(paths, resume=True)
    assert work.published == []
    assert manifest(paths).keys() == {"_rank_1"}
    assert seeds_of(paths) == list(range(SIZE))


async def test_the_file_of_a_rank_that_died_counts_up_to_its_cut(paths):
    dead = write(paths.checkpoint_shard("train", 1, rank=1), 0, 1)
    cut = dead.stat().st_size
    with dead.open("ab") as file:
        file.write(to_line(make_trajectory(2)))
    dead.rename(dead.with_name("begun-later"))

    class Losing(FakeWork):
        async def publish(self, groups, **terms):
            await super().publish(groups, **terms)
            dead.with_name("begun-later").rename(dead)  # the rank begins only when there is work

    work = Losing([Part(dead.name.removesuffix(".checkpoint"), 1, cut)])
    await run_master(paths, work=work, num_nodes=2, skipped=(0, 1))

    assert manifest(paths)["_rank_1"] == {"rank": 1, "bytes": cut, "episodes": 2, "damaged": 0}
    assert sorted(seeds_of(paths)) == list(range(SIZE))


async def test_an_episode_run_but_in_no_file_is_an_error_and_finishes_nothing(paths):
    with pytest.raises(StoreError, match=r"with 2 episodes that were run, task-7:0:0 the first"):
        await run_master(paths, skipped=(7, 8))
    assert paths.iterations("train") == []


async def test_after_a_lost_engine_the_master_goes_on_with_published_chunks(paths):
    work = FakeWork()
    with pytest.raises(RetryLater, match="the engine is gone"):
        await run_master(
            paths, work=work, skipped=(5, 6), error=RetryLater("the engine is gone"), num_nodes=2
        )
    other = write(paths.checkpoint_shard("train", 1, rank=1), 5)  # recorded meanwhile, and cut afterwards
    work.others = [Part(other.name.removesuffix(".checkpoint"), 1, read_header_bytes(other))]
    account, _ = await run_master(paths, work=work, num_nodes=2)

    assert account == "submitted=12 completed=12 failed=0 timed_out=0 abandoned=0"
    assert names(paths) == [".manifest.json", "_rank_0", "_rank_1"]
    assert sorted(seeds_of(paths)) == list(range(SIZE))


def read_header_bytes(shard: Path) -> int:
    read_header(shard)
    return shard.read_bytes().index(b"\n") + 1


async def test_an_iteration_goes_on_only_as_it_was_begun(paths):
    message = r"policy_config\.temperature=1\.0, not 0\.7"
    with pytest.raises(RetryLater):
        await run_master(paths, skipped=(5,), error=RetryLater("stopped"))
    before = read_files(paths)
    with pytest.raises(ConfigError, match=f"was begun with {message}; put it back .*without --resume"):
        await run_master(paths, resume=True, begins_with=COLDER)
    assert read_files(paths) == before
    await run_master(paths, resume=True)
    assert sorted(seeds_of(paths)) == list(range(SIZE))


async def test_an_iteration_that_begins_afresh_begins_with_what_holds_then(paths):
    for begins_with in (CONDITIONS, COLDER):
        with pytest.raises(RetryLater):
            await run_master(paths, skipped=(5,), error=RetryLater("stopped"), begins_with=begins_with)
    await run_master(paths, resume=True, begins_with=COLDER)
    assert sorted(seeds_of(paths)) == list(range(SIZE))


async def test_settings_that_change_while_the_engine_is_away_are_refused_too(paths):
    work = FakeWork()
    with pytest.raises(RetryLater):
        await run_master(paths, work=work, skipped=range(SIZE), error=RetryLater("the engine is gone"))
    with pytest.raises(ConfigError, match=r"policy_config\.temperature"):
        await run_master(paths, work=work, begins_with=COLDER)


def read_files(paths) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths.trajectory_dir("train").iterdir()}


@pytest.mark.parametrize("must_exist", [True, False])
async def test_a_resume_with_nothing_begun_is_an_error_only_where_it_must_exist(paths, must_exist):
    write(paths.checkpoint_shard("train", 1), 0, header=OTHER_RUN)
    if must_exist:
        with pytest.raises(ConfigError, match="no unfinished rollout"):
            await run_master(paths, resume=True)
        assert names(paths) == [".checkpoint"]
    else:
        await run_master(paths, resume=True, must_exist=False)
        assert seeds_of(paths) == list(range(SIZE))


@pytest.mark.parametrize("line", [0, 1])
async def test_episodes_of_a_damaged_line_run_again_and_the_iteration_is_whole(paths, caplog, line):
    shard = write(paths.checkpoint_shard("train", 1), 0, 1, 2)
    lines = shard.read_bytes().splitlines(keepends=True)
    damaged = lines[line].replace(b'"seed":', b'"sEed":')
    shard.write_bytes(b"".join([*lines[:line], damaged, *lines[line + 1 :]]))

    _, work = await run_master(paths, resume=True, must_exist=False)

    assert f"iteration1.checkpoint:{line + 1}: is damaged" in caplog.text
    assert work.published == ([0, *range(3, SIZE)] if line else list(range(SIZE)))
    assert sorted(seeds_of(paths)) == list(range(SIZE))
    assert manifest(paths)[""]["damaged"] == line


FILES = st.lists(
    st.tuples(
        st.lists(st.integers(0, SIZE - 1), unique=True, max_size=SIZE),
        st.sampled_from([HEADER, HEADER, OTHER_RUN]),
        st.integers(0, 60),
    ),
    max_size=5,
)


@given(files=FILES, has_bare=st.booleans(), nodes=st.integers(1, 3))
def test_any_number_of_nodes_may_have_begun_and_any_number_may_resume(
    tmp_path_factory, files, has_bare, nodes
):
    paths = RunPaths(tmp_path_factory.mktemp("log"))
    for rank, (indices, header, torn_bytes) in enumerate(files):
        place = {} if has_bare and rank == 0 else {"rank": rank // 2, "part": 1 + rank % 2}
        torn = to_line(make_trajectory(0))[:torn_bytes]
        write(paths.checkpoint_shard("train", 1, **place), *indices, header=header, torn=torn)
    held = {index for indices, header, _ in files if header is HEADER for index in indices}

    account, work = asyncio.run(run_master(paths, resume=True, must_exist=False, num_nodes=nodes))

    assert set(work.published) == set(range(SIZE)) - held
    assert sorted(seeds_of(paths)) == list(range(SIZE))
    assert account == "submitted=12 completed=12 failed=0 timed_out=0 abandoned=0"
    assert not [name for name in names(paths) if name.endswith(".checkpoint")]
