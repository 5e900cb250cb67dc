"""Writes what became of a pool's engines to a file beside the journal, a line each, for a later look.

    engine changed ─► {"at", "engine", "id", "state", "reason", "weight_version"}
    request moved  ─► {"at", "moved": request, "run", "from", "to", "tokens", "waited_s", "reason"}
    wanted changed ─► {"at", "wanted": {kind: count}, "present": {kind: count}, "reason", "ceiling"}
    now and then   ─► {"at", "weight_version", "open", …, "engines": {name: [state, version, running]}}

It holds no prompts and no responses. Of the moves between two writes only the last `MAX_MOVES` are there; the
samples count all. A line that cannot be written is dropped: the pool comes first.
"""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl_agent.pool.scheduler.events import Moved
from rl_agent.pool.scheduler.records import EngineState
from rl_agent.pool.scheduler.state import PoolState, totals_of
from rl_agent.pool.schemas import WantedAnswer

log = logging.getLogger(__name__)
SAMPLE_EVERY_S = 2.0
UNCHANGED_EVERY_S = 30.0
"""A pool in which nothing happens is sampled so often."""
MAX_REASON = 500
MAX_MOVES = 20


def history_file(journal: Path) -> Path:
    """Return the file of the pool that has this journal."""
    return journal.with_suffix(".history.jsonl")


class PoolHistory:
    """Appends to the file in a thread; `changed` only notes what to write."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lines: list[dict[str, Any]] = []
        self._moves: deque[dict[str, Any]] = deque(maxlen=MAX_MOVES)
        self._last: dict[str, Any] = {}
        self._sampled_at = float("-inf")
        self._has_failed = False

    def changed(
        self, name: str, engine_id: str, state: EngineState, reason: str, weight_version: int | None
    ) -> None:
        """Note that an engine is in another state."""
        self._lines.append(
            {
                "at": self._clock(),
                "engine": name,
                "id": engine_id[:8],
                "state": state.value,
                "reason": reason[:MAX_REASON],
                "weight_version": weight_version,
            }
        )

    def moved(self, move: Moved) -> None:
        """Note that a request goes on at another engine."""
        self._moves.append(
            {
                "at": self._clock(),
                "moved": move.request_id.name[:MAX_REASON],
                "run": move.request_id.run[:MAX_REASON],
                "from": move.source,
                "to": move.target,
                "tokens": move.tokens,
                "waited_s": round(move.waited_s, 3),
                "reason": move.reason[:MAX_REASON],
            }
        )

    def wanted_changed(self, answer: WantedAnswer) -> None:
        """Note that another number of engines is wanted."""
        self._lines.append(
            {
                "at": self._clock(),
                "wanted": answer.counts,
                "present": answer.present,
                "reason": answer.reason[:MAX_REASON],
                "ceiling": answer.ceiling,
            }
        )

    async def run(self, state: PoolState) -> None:
        """Sample and write until cancelled, then write what is left."""
        try:
            while True:
                await asyncio.sleep(SAMPLE_EVERY_S)
                self.sample(state)
                await asyncio.to_thread(self._append, self._noted())
        finally:
            self.sample(state)
            self.write()

    def sample(self, state: PoolState) -> None:
        """Note the pool as it is, if it has changed."""
        account, now = state.account, self._clock()
        running = {engine.engine_id: len(engine.running) for engine in state.engines.values()}
        sample = {
            "weight_version": state.weight_version,
            "open": account.submitted - account.completed - account.failed,
            "running": sum(running.values()),
            "completed": account.completed,
            "failed": account.failed,
            "moves": account.moves,
            "tokens": account.tokens,
            "weight_bytes": asdict(totals_of(state, state.now).weight_bytes),
            "engines": {
                engine.offer.name: [engine.state.value, engine.weight_version, running[engine.engine_id]]
                for engine in state.engines.values()
            },
        }
        if sample != self._last or now - self._sampled_at >= UNCHANGED_EVERY_S:
            self._last, self._sampled_at = sample, now
            self._lines.append({"at": now, **sample})

    def write(self) -> None:
        """Append what was noted."""
        self._append(self._noted())

    def _noted(self) -> list[dict[str, Any]]:
        """Return what is to be written, and forget it."""
        noted = [*self._lines, *self._moves]
        self._lines.clear()
        self._moves.clear()
        return noted

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines))
        except OSError as error:
            if not self._has_failed:
                log.warning(
                    "%s: cannot be written, so the page will not show it: %s", self._path, error.strerror
                )
            self._has_failed = True
