"""Defines a thread that works beside the steps of a trainer and ends with its context."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class BackgroundThread(ABC):
    """A thread whose `_run` ends once `_is_stopping`.

    Whoever changes what it waits for holds `_changed` and notifies it.
    """

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...
