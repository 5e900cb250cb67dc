"""Prepares the memory that the next version is written into, before it is needed.

    a version is collected ─► its memory, if nobody reads it any more
    none was, yet          ─► new memory, page by page, while the trainer trains and engines generate

New pages come at 1 to 3 GB/s, ten times slower than used ones are written. On a disk nothing is prepared.
"""

import logging
import threading
from contextlib import suppress
from pathlib import Path

from rl_agent.errors import WeightsError
from rl_agent.weights.store.mapped_file import DraftFile, is_memory

_log = logging.getLogger(__name__)
_STEP_BYTES = 2**24


class PreallocatedFile:
    """The file that the next version is written into. Its store holds a lock around every call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: DraftFile | None = None
        self._preparing: threading.Thread | None = None
        self._stop = threading.Event()

    def put(self, blob: Path, file: DraftFile | None) -> None:
        """Keep the file of a collected version in place of the one kept so far.

        `file`: None if another process has written it; what it shares with others is left to them.
        """
        if file is None and blob.is_file() and blob.stat().st_nlink > 1:
            return
        self.stop_preparing()
        self._file = None
        with suppress(OSError):  # the version had lost its file, or something else lies here
            blob.rename(self._path)
            self._file = file

    def take(self) -> DraftFile | None:
        """Return the file, as far as it is prepared; None if there is none or somebody reads it.

        Nobody can open it by its old name; another store that has taken the version by a link has that link.
        """
        self.stop_preparing()
        file, self._file = self._file, None
        if not self._path.is_file():
            return None
        if file is None:
            file = DraftFile(self._path)
        file.path = self._path
        if file.is_used_elsewhere():
            self._path.unlink()
            file.close()
            return None
        return file

    def prepare(self, size_bytes: int) -> None:
        """Allocate so much memory in the background, unless there is some."""
        if self._path.exists() or not size_bytes or not is_memory(self._path.parent):
            return
        file = self._file = DraftFile(self._path)
        self._stop.clear()
        self._preparing = threading.Thread(
            target=self._fill, args=(file, size_bytes), name="prepare-memory", daemon=True
        )
        self._preparing.start()

    def stop_preparing(self) -> None:
        """End the background work; what is prepared stays."""
        if self._preparing is not None:
            self._stop.set()
            self._preparing.join()
            self._preparing = None

    def _fill(self, file: DraftFile, size_bytes: int) -> None:
        zeros = memoryview(bytes(min(size_bytes, _STEP_BYTES)))
        try:
            file.resize(size_bytes)
            for start in range(0, size_bytes, _STEP_BYTES):
                if self._stop.is_set():
                    return
                file.write(start, zeros[: size_bytes - start])
        except (OSError, WeightsError) as error:  # whoever needs it says so
            _log.debug("%s", error)
            self._path.unlink(missing_ok=True)
