"""A restarted manager reads its journal; a row that cannot be used is one line."""

import time

import pytest
from pydantic_core import to_json

from rl_agent.errors import StoreError
from rl_agent.pool.runtime.journal import Journal
from rl_agent.pool.runtime.restore import Restore
from rl_agent.pool.runtime.results import Run
from tests.support.pool_setup import item

DEADLINE = 4e9


def submitted(number, **more):
    return request(number, submission=to_json({"item": item(number, 10) | more, "deadline": DEADLINE}))


def ended(number, cursor, **more):
    sample = {"cursor": 0, "id": f"r{number}", "group": None, "is_completed": True, "failure": ""}
    sample |= {"token_ids": [5], "logprobs": [0.0]}
    return request(number, sample=to_json(sample | more), cursor=cursor)


def request(number, **columns):
    return "request", {"run": "run", "id": f"r{number}", **columns}


def progress(number, start, tokens, **more):
    row = {"token_ids": tokens, "logprobs": [0.0] * len(tokens), "text_start": 0, "text": "", "spans": []}
    row |= {"moves": 0, "digest": "d", "deadline": DEADLINE}
    columns = {"kind": "request", "run": "run", "id": f"r{number}", "start": start}
    return "progress", columns | {"record": to_json(row | more)}


def write(path, *rows) -> None:
    journal = Journal(path)
    for table, columns in rows:
        marks = ", ".join("?" * len(columns))
        statement = f"REPLACE INTO {table}({', '.join(columns)}) VALUES ({marks})"
        journal.write([(statement, tuple(columns.values()))])
    journal._connection.close()


def read(path) -> Restore:
    journal = Journal(path)
    restore = Restore(journal, time.monotonic(), lambda name: Run(name, 0))
    try:
        restore.read()
    finally:
        journal._connection.close()
    return restore


BROKEN = [
    (request(2, submission=b"no JSON at all"), "row 3 of table request cannot be used: : Invalid JSON"),
    (submitted(2, sampling={"eos_token_ids": 2}), "row 3 of table request .*eos_token_ids"),
    (request(2, sample=b"{}", cursor=2), "row 3 of table request .* cursor: Field required"),
    (progress(1, 3, [1]), "row 1 of table progress .* the tokens before number 3 are missing"),
    (progress(1, 0, [1], logprobs=[]), "row 1 of table progress .* 1 tokens with 0 logprobs"),
    (progress(1, 0, [1], deadline=None), "row 1 of table progress .* deadline: .*release that wrote it"),
    (("wanted", {"kind": "nothing known", "record": b"{}"}), "row 1 of table wanted .* KeyError"),
]


@pytest.mark.parametrize(("row", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_row_that_cannot_be_used_is_one_line_and_stays(row, words, tmp_path):
    path = tmp_path / "journal"
    write(path, ended(0, 1), submitted(1), row)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"journal={path}: {words}") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        ([ended(0, 1), ended(1, 2)], {1: "r0", 2: "r1"}),
        ([("run", {"name": "run", "acknowledged": 2}), request(0), ended(1, 3)], {3: "r1"}),
        ([submitted(0, group="g"), ended(1, None, group="g")], {}),
    ],
    ids=["all", "acknowledged", "held"],
)
def test_samples_keep_their_cursors_and_every_id_is_known(rows, seen, tmp_path):
    write(tmp_path / "journal", *rows)
    run = read(tmp_path / "journal").runs["run"]
    assert {sample.cursor: sample.id for sample in run.samples} == seen
    assert run.newest == run.cursor == max(seen, default=0)
    assert run.ids == {"r0", "r1"}


def test_the_tokens_of_an_open_request_are_those_of_all_its_rows(tmp_path):
    late = progress(1, 0, [4], deadline=time.time() - 1)
    rows = (progress(0, 0, [1, 2]), progress(0, 2, [3]), late)
    write(tmp_path / "journal", submitted(0), submitted(1), *rows)
    calls = read(tmp_path / "journal").calls
    tokens = {key: call.response.token_ids for key, call in calls.items()}
    assert tokens == {("request", "run", "r0"): (1, 2, 3)}


def test_a_database_whose_pages_are_damaged_is_named(tmp_path):
    path = tmp_path / "journal"
    write(path, *(submitted(number) for number in range(200)))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be used: database disk image is malformed"):
        read(path)
