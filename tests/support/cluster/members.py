"""Members of a cluster in threads of this process, on a real folder."""

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_agent.cluster.member.member import Member
from rl_agent.cluster.protocol.records import MASTER_FILE
from rl_agent.config.plan import Command, Plan, new_incarnation
from tests.support.rollout_setup import make_plan

TIMEOUT_S = 20.0
FAST = ("cluster.heartbeat_s=0.1", "cluster.lease_s=3", f"cluster.start_timeout_s={TIMEOUT_S}")


@functools.cache
def base_plan(folder: Path, *words: str) -> Plan:
    keys = {word.partition("=")[0] for word in words}
    fast = [word for word in FAST if word.partition("=")[0] not in keys]
    return make_plan(folder, *fast, *words, engine_url="http://127.0.0.1:1", model=folder)


def plan(folder: Path, rank: int, num_nodes: int, *words: str, **changes: object) -> Plan:
    base = base_plan(folder, *words)
    values = base.command.model_dump()
    values |= {"num_nodes": num_nodes, "rank": rank, "rank_weights": (1,) * num_nodes}
    own = {"incarnation": new_incarnation(), "command": Command.model_validate(values)}
    return base.model_copy(update=own | changes)


class Background(threading.Thread):
    """A node in a thread of its own: `job` gets its member. What it returned or raised is in `outcome`."""

    def __init__(
        self,
        plan: Plan,
        job: Callable[[Member], object],
        *,
        is_joiner: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.plan, self.job, self.is_joiner, self.environ = plan, job, is_joiner, environ or {}
        self.lines: list[str] = []
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            with Member.enter(
                self.plan, self.environ, is_joiner=self.is_joiner, log=self.lines.append
            ) as member:
                self.outcome = self.job(member)
        except Exception as error:
            self.outcome = error

    def result(self) -> Any:
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "the node hangs"
        return self.outcome


def follow(member: Member) -> list[tuple[str, str, tuple[str, ...]]]:
    """A worker that does nothing but meet the others; what was decided."""
    seen: list[tuple[str, str, tuple[str, ...]]] = []
    while (order := member.next_order()) is not None:
        member.finish(order.iteration, order.phase, "done")
        decision = member.wait_decision(order.iteration, order.phase, timeout_s=TIMEOUT_S)
        seen.append((order.phase, decision.outcome, decision.words))
    return seen


def wait_to_die(member: Member) -> object:
    """Waits for an order that never comes."""
    return member.next_order()


@contextmanager
def master(
    folder: Path, num_nodes: int, *words: str, lines: list[str] | None = None, **changes: object
) -> Iterator[Member]:
    lines = [] if lines is None else lines
    with Member.enter(plan(folder, 0, num_nodes, *words, **changes), {}, log=lines.append) as member:
        yield member


def until(is_true: Callable[[], object], what: str) -> None:
    """Wait for something that another thread brings about."""
    done, timer = threading.Event(), threading.Event()
    for _ in range(int(TIMEOUT_S / 0.01)):
        if is_true():
            done.set()
            break
        timer.wait(0.01)
    assert done.is_set(), what


def cluster_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in ("heartbeat", "cluster")]


def read_master(folder: Path) -> Any:
    return json.loads((folder / "log" / MASTER_FILE).read_text())
