"""An actor of a Ray cluster for one machine. Standard library and Ray alone: Ray carries it to its node.

    actor ─ pipe ─► guard ─► worker, which leads a process group

When the actor is asked to leave, or dies (of SIGKILL too), the worker gets TERM to drain, and is killed once
its time is over. Once the worker has ended the actor ends by Ray's own call, which Ray does not take for a
crash, and frees what it held.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

EXIT_S = 20.0
"""Ray's grace to end the actor; a cluster that is ending itself has none."""


class RayMachine:
    """One actor, one worker of the pool. Its methods' names tell its handles from those of other actors."""

    def __init__(self, guard: str, words: Sequence[str], drain_s: float, log: str) -> None:
        """`guard` is the text of `ray_guard`; `log` gets the output of the worker."""
        import ray

        self._is_leaving = False
        alive, self._alive = os.pipe()
        ended, end = os.pipe()
        with open(log, "ab") as output:  # noqa: PTH123
            subprocess.run(  # returns at once: the guard goes on in another process
                [sys.executable, "-", str(alive), str(end), str(drain_s), *words],
                input=guard.encode(),
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(alive, end),
                check=True,
            )
        os.close(alive)
        os.close(end)
        itself = ray.get_runtime_context().current_actor
        threading.Thread(target=self._end_with_worker, args=(ended, itself), daemon=True).start()

    def is_leaving_pool(self) -> bool:
        return self._is_leaving

    def leave_pool(self) -> None:
        """Let the worker drain."""
        if not self._is_leaving:
            self._is_leaving = True
            os.close(self._alive)

    def end(self) -> None:
        """End the actor. Its worker has ended, or ends with it."""
        import ray

        ray.actor.exit_actor()

    def _end_with_worker(self, ended: int, itself: Any) -> None:
        os.read(ended, 1)
        itself.end.remote()
        time.sleep(EXIT_S)
        os._exit(0)
