"""The view of the pool: when engines came, served which version and went, and why."""

import json
import re

from rl_agent.monitor import metrics
from rl_agent.page.pool_view import SHOWN_MOVES
from rl_agent.paths import RunPaths
from rl_agent.pool.runtime.history import MAX_MOVES, MAX_REASON, PoolHistory, history_file
from rl_agent.pool.scheduler.events import Moved
from rl_agent.pool.scheduler.records import EngineState, RequestId
from tests.support.pool_setup import manager
from tests.unit.page.stores import text_of
from tests.unit.page.test_trajectory_views import EVIL, is_harmless


def write_history(log_path, *lines: object, attempt: int = 1) -> None:
    folder = RunPaths(log_path).run_dir("latest")
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / f"pool-{attempt}.history.jsonl").write_text(text)


def sample(at: float, **more) -> dict:
    counts = {"open": 7, "running": 5, "completed": 11, "failed": 0, "moves": 2, "tokens": 100 * int(at)}
    return {"at": at, "weight_version": 3, "engines": {"spot-1": ["ready", 3, 5]}} | counts | more


def event(at: float, engine: str, state: str = "ready", *, reason: str = "", version: int | None = 1) -> dict:
    shown = {"state": state, "reason": reason, "weight_version": version}
    return {"at": at, "engine": engine, "id": "a"} | shown


async def test_engines_are_shown_with_their_states_and_reasons(tmp_path, pool_of):
    write_history(
        tmp_path,
        event(100.0, "spot-1", "registered", version=None),
        event(110.0, "spot-1", version=2),
        sample(120.0),
        event(160.0, "spot-1", "gone", reason="its lease ended", version=3),
        sample(180.0, engines={}, open=4, running=0),
    )
    html = await pool_of(tmp_path)
    assert "spot-1 ready, 50.0 s" in html and "spot-1 registered, 10.0 s" in html
    assert "its lease ended" in html and "waiting for an engine: 4 at minute" in html
    assert "sampled: 100 at minute" in html and "ready: 0 at minute" in html


async def test_new_weights_are_shown_by_iteration(tmp_path, pool_of):
    write_history(tmp_path, sample(120.0))
    line = {"iteration": 3, "phase": "update", "update/publish_s": 0.25, "update/sent_tcp_bytes": 1234567}
    metrics.append(RunPaths(tmp_path).metrics, line | {"weights/bytes": 77})
    html = await pool_of(tmp_path)
    rows = re.findall(r"<tr><th scope=\"row\">3</th>(.*?)</tr>", html)
    assert [re.findall(r"<td>(.*?)</td>", row) for row in rows] == [["77", "-", "-", "-"], ["0.250", "-"]]
    assert "1,234,567" not in html  # of a pool, the engines report the bytes


async def test_weight_bytes_of_workers_are_in_status_metrics_and_page(tmp_path, pool_of):
    journal = RunPaths(tmp_path).run_dir("latest") / "pool-1.sqlite"
    journal.parent.mkdir(parents=True)
    async with manager(f"journal={journal}") as pool:
        body = {"name": "a", "has_worker": True, "capacity": 1}
        _, answer = await pool.call("POST", "/engines", body)
        secret = {"X-Engine-Secret": answer["secret"]}
        for trainer in (1_000, 1_234_567):
            beat = {"weights": {"received": {"trainer": trainer, "engines": 89}}}
            status, _ = await pool.call("POST", f"/engines/{answer['engine_id']}/beat", beat, headers=secret)
            assert status == 200
        _, status = await pool.call("GET", "/status")
        came = {"trainer": 1_234_567, "engines": 89, "manager": 0, "same_host": 0}
        assert status["totals"]["weight_bytes"] == status["engines"][0]["weight_bytes"] == came
        _, text = await pool.call("GET", "/metrics")
        assert 'rl_pool_weight_bytes_total{source="trainer"} 1.234567e+06' in text
    table = re.search(r'id="weight-bytes".*?</table>', await pool_of(tmp_path), re.DOTALL)[0]
    assert re.findall(r"<td>(.*?)</td>", table) == ["1,234,567", "89", "0", "0"]


async def test_a_run_without_a_pool_says_so(tmp_path, pool_of):
    assert "This run has no pool" in await pool_of(tmp_path)


async def test_words_of_engines_are_shown_and_never_run(tmp_path, pool_of):
    evil = event(2.0, EVIL, reason=EVIL)
    write_history(tmp_path, sample(1.0, engines={EVIL: ["ready", 3, 5]}), evil, '{"at": 5.0, "engi')
    assert is_harmless(await pool_of(tmp_path))


async def test_the_manager_writes_what_becomes_of_its_engines(tmp_path):
    journal = tmp_path / "pool-1.sqlite"
    async with manager(f"journal={journal}") as pool:
        status, _ = await pool.call("POST", "/engines", {"name": "a", "has_worker": True, "capacity": 1})
        assert status == 201
    lines = [json.loads(line) for line in history_file(journal).read_text().splitlines()]
    assert [line["state"] for line in lines if line.get("engine") == "a"] == ["registered"]
    assert list(lines[-1]["engines"]) == ["a"]


def test_a_full_disk_costs_the_history_and_not_the_pool(tmp_path):
    history = PoolHistory(tmp_path / "gone" / "pool.history.jsonl")
    history.changed("a", "id", EngineState.READY, "", 1)
    history.write()
    history.write()


async def test_wanted_engines_are_shown_beside_ready_ones_with_the_reasons(tmp_path, pool_of):
    def wanted(at: float, number: int, reason: str) -> dict:
        return {"at": at, "wanted": {"spot": number}, "present": {"spot": 1}, "reason": reason, "ceiling": ""}

    write_history(
        tmp_path,
        sample(100.0),
        wanted(110.0, 1, "1 wanted: no engine's speed is known yet"),
        wanted(160.0, 3, f"3 wanted: the trainer waited 41 s of 60 {EVIL}"),
        sample(220.0),
    )
    html = await pool_of(tmp_path)
    assert is_harmless(html)
    assert "wanted: 3 at minute" in html and "ready: 1 at minute" in html
    assert "3 wanted: the trainer waited 41 s of 60" in html and "3 spot" in html


def write_run_history(log_path, name: str, engine: str) -> None:
    folder = RunPaths(log_path).run_dir(name)
    folder.mkdir(parents=True)
    (folder / "pool-1.history.jsonl").write_text(json.dumps(event(1.0, engine)) + "\n")


async def test_the_pool_of_the_newest_run_is_shown_alone(tmp_path, look):
    for name, engine in (("first", "spot-1"), ("second", "spot-2")):
        write_run_history(tmp_path, name, engine)
    latest = tmp_path / "runs" / "latest"
    latest.symlink_to("first")
    client = await look(tmp_path)
    html = await text_of(client, f"/runs/{tmp_path.name}/pool")
    assert "spot-1 ready" in html and "spot-2" not in html
    latest.unlink()
    latest.symlink_to("second")  # another run has begun
    html = await text_of(client, f"/runs/{tmp_path.name}/pool?look=2")
    assert "spot-2 ready" in html and "spot-1" not in html


def moved(at: float, **more) -> dict:
    places = {"moved": "task-0:0:1:2", "run": "run", "from": "spot-1", "to": "home-1"}
    return {"at": at, "tokens": 1234, "waited_s": 0.25, "reason": "drains: taken back"} | places | more


async def test_the_last_moves_are_shown_with_request_engines_tokens_and_reason(tmp_path, pool_of):
    many = (moved(100.0 + n, tokens=n) for n in range(SHOWN_MOVES))
    last = (sample(300.0, moves=205), moved(310.0), moved(320.0, **{"from": ""}))
    write_history(tmp_path, sample(100.0), *many, *last)
    html = await pool_of(tmp_path)
    assert "The last 100 of 205." in html
    table = re.search(r'id="moves".*?</table>', html, re.DOTALL)[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr><td>.*?</tr>", table)]
    assert len(rows) == SHOWN_MOVES
    newest = ["task-0:0:1:2", "an earlier manager", "home-1", "1,234", "0.25 s", "drains: taken back"]
    assert rows[0][2:] == newest
    assert rows[1][0] == "3 min 30 s" and rows[1][3:5] == ["spot-1", "home-1"]
    assert rows[-1][5] == "2"


def test_of_many_moves_at_once_the_last_are_kept(tmp_path):
    history = PoolHistory(tmp_path / "pool.history.jsonl", clock=lambda: 5.0)
    for n in range(1000):
        history.moved(Moved(RequestId("run", f"r{n}"), "a", "b", n, 0.5, "long " * 1000))
    history.write()
    lines = [json.loads(line) for line in (tmp_path / "pool.history.jsonl").read_text().splitlines()]
    assert [line["moved"] for line in lines] == [f"r{n}" for n in range(1000 - MAX_MOVES, 1000)]
    assert len(lines[0]["reason"]) == MAX_REASON
