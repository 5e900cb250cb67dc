"""What a restarted manager reads from its journal, whatever is in it."""

import sqlite3
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from rl_agent.errors import StoreError
from rl_agent.pool.runtime.journal import Journal
from rl_agent.pool.runtime.restore import Restore
from rl_agent.testing.pool_setup import expected, item, manager, read_journal
from rl_agent.testing.simulated_engine import Behaviour
from rl_agent.testing.streaming_engine import StreamingEngine, serving


def submitted(number, **more):
    row = {"item": item(number, 10) | more, "holds_group": "group" in more, "deadline": (4e9, "", 0.0)}
    return request(number, submission=to_json(row))


def ended(number, cursor, **more):
    sample = {"cursor": 0, "id": f"r{number}", "group": None, "is_completed": True, "failure": ""}
    sample |= {"token_ids": [5], "logprobs": [0.0]}
    return request(number, sample=to_json(sample | more), cursor=cursor)


def request(number, **columns):
    return "request", {"run": "run", "id": f"r{number}", **columns}


def progress(number, start, tokens, **more):
    row = {"token_ids": tokens, "logprobs": [0.0] * len(tokens), "text_start": 0, "text": "", "spans": []}
    columns = {"kind": "request", "run": "run", "id": f"r{number}", "start": start}
    return "progress", columns | {"record": to_json(row | {"moves": 0} | more)}


def write(path, *rows) -> None:
    journal = Journal(path)
    for table, columns in rows:
        marks = ", ".join("?" * len(columns))
        statement = f"REPLACE INTO {table}({', '.join(columns)}) VALUES ({marks})"
        journal.write([(statement, tuple(columns.values()))])
    journal._connection.close()


def read(path) -> Restore:
    journal = Journal(path)
    found = Restore(journal, time.monotonic())
    found.read()
    journal._connection.close()
    return found


async def test_a_journal_with_a_row_that_no_manager_takes_lets_the_next_one_start(tmp_path):
    """As older managers let it in: a bare number where `generation_config.json` has one, too."""
    path = tmp_path / "journal"
    write(path, submitted(0), submitted(1, sampling={"eos_token_ids": 2}), submitted(2))
    async with serving(StreamingEngine(Behaviour())) as engine:
        async with manager(f"journal={path}") as pool:
            await pool.join(engine.url)
            samples = {one["id"]: one for one in await pool.samples("run", at_least=3)}
            assert samples["r0"]["token_ids"] == expected(10, 0)
            assert samples["r2"]["token_ids"] == expected(10, 2)
            assert not samples["r1"]["is_completed"]
            assert "row 2 of table request: item.sampling" in samples["r1"]["failure"]
            _, status = await pool.call("GET", "/status")
            assert status["set_aside"]["count"] == 1 and "eos_token_ids" in status["set_aside"]["newest"][0]
            assert "rl_pool_set_aside_total 1.0" in (await pool.call("GET", "/metrics"))[1]
        [kept] = (tmp_path / "journal.quarantine").read_text().splitlines()
        assert "eos_token_ids" in kept
        assert (tmp_path / "journal.quarantine").stat().st_mode & 0o777 == 0o600
        async with manager(f"journal={path}") as pool:
            assert {one["id"] for one in await pool.samples("run", at_least=3)} == {"r0", "r1", "r2"}
            assert pool.batches.pool.faults.count == 0
        assert len((tmp_path / "journal.quarantine").read_text().splitlines()) == 1


BROKEN = [
    request(2, submission=b"no JSON at all"),
    request(2, submission=b"\xff\xfe\x00"),
    request(2, submission=b"[" * 5000),
    request(2, submission=b"7"),
    request(2, sample=b"{}", cursor=2),
    request(2, sample=b"{}", cursor="2nd"),
    ("request", {"run": "two\nlines", "id": "r2", "submission": b"{}"}),
    ("request", {"run": "run", "id": b"\xff", "submission": b"{}"}),
    ("run", {"name": "other", "acknowledged": -1}),
    progress(1, 3, [1]),
    progress(1, 0, [1], logprobs=[]),
    progress(1, 0, ["1"]),
    ("wanted", {"kind": "model", "record": b'{"model": "m", "weight_version": "1"}'}),
    ("wanted", {"kind": "weights", "record": b"{}"}),
    ("wanted", {"kind": "nothing known", "record": b"{}"}),
]


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: str(row)[:60])
def test_any_row_may_be_broken_and_the_others_count(row, tmp_path):
    path = tmp_path / "journal"
    write(path, ended(0, 1), submitted(1), row)
    found = read(path)
    assert found.runs["run"].samples[0].id == "r0" and found.runs["run"].samples[0].is_completed
    assert list(found.runs["run"].open) == ["r1"]
    assert len(found.problems) == 1 and found.problems[0].startswith(f"row {3 if row[0] == 'request' else 1}")
    assert len((tmp_path / "journal.quarantine").read_text().splitlines()) == 1
    again = read(path)
    assert not again.problems and again.runs["run"].samples == found.runs["run"].samples


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        # A sample that cannot be read keeps its cursor.
        ([ended(0, 1, token_ids="?"), ended(1, 2)], {1: ("r0", False), 2: ("r1", True)}),
        # A request that cannot be read fails, after all that ended.
        ([submitted(0, max_tokens=-1), ended(1, 1)], {1: ("r1", True), 2: ("r0", False)}),
        # What was acknowledged stays so.
        ([("run", {"name": "run", "acknowledged": 2}), request(0), ended(1, 3)], {3: ("r1", True)}),
        # Siblings wait for the one that cannot be read no longer.
        (
            [submitted(0, group="g", max_tokens=-1), ended(1, None, group="g")],
            {1: ("r1", True), 2: ("r0", False)},
        ),
        # A sibling that cannot be read waits for its group like the others.
        ([submitted(0, group="g"), ended(1, None, group="g", token_ids="?")], {}),
    ],
)
def test_cursors_stay_right_though_rows_are_quarantined(rows, seen, tmp_path):
    write(tmp_path / "journal", *rows)
    for _ in range(2):
        run = read(tmp_path / "journal").runs["run"]
        assert {sample.cursor: (sample.id, sample.is_completed) for sample in run.samples} == seen
        assert run.newest == run.next_cursor - 1 == max(seen, default=0)
        assert run.ids == {"r0", "r1"}


def test_the_tokens_of_an_open_request_are_those_of_all_rows_in_a_line(tmp_path):
    rows = (progress(0, 0, [1, 2]), progress(0, 2, [3]), progress(1, 0, [4]), progress(1, 2, [5]))
    write(tmp_path / "journal", submitted(0), submitted(1), *rows)
    found = read(tmp_path / "journal")
    assert {key[1]: made.token_ids for key, made in found.made.items()} == {"r0": (1, 2, 3), "r1": (4,)}
    assert len(found.problems) == 1 and "before number 2 are missing" in found.problems[0]


def test_a_database_whose_pages_are_damaged_is_named(tmp_path):
    path = tmp_path / "journal"
    write(path, *(submitted(number) for number in range(200)))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be used: database disk image is malformed"):
        read(path)


ANYTHING = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
).map(to_json)


@given(data=st.data())
def test_a_journal_of_anything_is_read(data, tmp_path_factory):
    whole = [submitted(0), submitted(1, group="g"), ended(2, 1), progress(0, 0, [1]), ("run", {"name": "x"})]

    def mixed(row):
        table, columns = row
        some = {name: st.just(value) | ANYTHING | JSON for name, value in columns.items()}
        return st.fixed_dictionaries(some).map(lambda values: (table, values))

    rows = data.draw(st.lists(st.sampled_from(whole) | st.sampled_from(whole).flatmap(mixed), max_size=6))
    path = tmp_path_factory.mktemp("journal") / "journal"
    try:
        write(path, *rows)
    except sqlite3.Error:  # a text that is no UTF-8 cannot even be written
        return
    for run in read(path).runs.values():
        assert not set(run.open) - run.ids
    assert not read(path).problems
    assert read_journal(path, "request") is not None
