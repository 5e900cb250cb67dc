"""Images that came over the wire, as files for whoever reads them next: of each instance those of one answer.

The collector copies an observation's images before it asks for the next one, so a spool stays small; one that
has no room says so instead of filling the disk.
"""

import shutil
import tempfile
from pathlib import Path

from rl_agent.errors import EnvironmentFailure


class Spool:
    """A folder of its own, deleted with `close`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._folder: Path | None = None
        self._bytes = 0
        self._kept: dict[int, list[Path]] = {}
        self._sizes: dict[int, int] = {}

    def keep(self, instance: int, contents: tuple[bytes, ...]) -> tuple[str, ...]:
        """Write an observation's images in place of the instance's earlier ones; returns their paths.

        Raises EnvironmentFailure if there is no room for them.
        """
        self.drop(instance)
        if not contents:
            return ()
        size = sum(map(len, contents))
        if self._bytes + size > self._max_bytes:
            raise EnvironmentFailure(
                f"the servers' images take {self._bytes + size:,} bytes; at most {self._max_bytes:,} may"
            )
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rl-agent-images-"))
        paths = [self._folder / f"{instance}-{number}" for number in range(len(contents))]
        self._kept[instance], self._sizes[instance] = paths, size
        self._bytes += size
        try:
            for path, content in zip(paths, contents, strict=True):
                path.write_bytes(content)
        except OSError as error:
            self.drop(instance)
            raise EnvironmentFailure(f"an image cannot be kept: {error.strerror}") from error
        return tuple(map(str, paths))

    def drop(self, instance: int) -> None:
        """Delete the images of an instance."""
        for path in self._kept.pop(instance, ()):
            path.unlink(missing_ok=True)
        self._bytes -= self._sizes.pop(instance, 0)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
