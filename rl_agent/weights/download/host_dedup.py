"""Takes versions from another store of this host by hard links, so that a host fetches each one once.

    the first    takes the turn of the content ─► fetches, verifies, publishes ─► gives the turn back
    the others   wait for the turn ─► link the blobs of the first, verify, publish: one copy in memory for all

What a trainer of this host has published is linked by the first one, too. Each store still has versions of
its own: it keeps and collects them as it likes, and the bytes go with the last link; a trainer writes into
the memory of a version again once nobody else has a link to it. If the first one fails or dies, the next has
the turn and fetches.
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout

from rl_agent.errors import WeightsError
from rl_agent.system.owner import owner_lock
from rl_agent.system.processes import ProcessId
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.format.checksums import wrong_pieces
from rl_agent.weights.store.mapped_file import map_file
from rl_agent.weights.store.store import Snapshot, SnapshotStore, blobs, having

_log = logging.getLogger(__name__)
_POLL_S = 0.1


@contextmanager
def turn(base: Path, digest: str, deadline: Deadline, stop: threading.Event) -> Iterator[None]:
    """Hold the lock under which one store below `base` fetches the content `digest`, while others wait.

    Raises WeightsError when cancelled, or if the deadline passes while another has it.
    """
    path = base / f"rl-agent-fetch-{os.getuid()}-{digest[:16]}.lock"
    lock, left_s = owner_lock(path, ProcessId.of(os.getpid())), deadline.remaining_s()
    try:
        lock.acquire(left_s, _POLL_S, cancel_check=stop.is_set)
    except Timeout as error:
        if stop.is_set():
            raise WeightsError("the transfer was cancelled") from error
        raise WeightsError(
            f"{base}: another engine of this host was still fetching at the deadline"
        ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def adopt(
    store: SnapshotStore, others: Iterable[Path], announced: Announcement, *, threads: int
) -> Snapshot | None:
    """Publish in `store` the announced version of one of the `others`, by links.

    None if none has it whole, or `store` is that far already.
    """
    newest = store.newest
    if newest is not None and newest.weight_version >= announced.weight_version:
        return None
    roots = (root for root in others if root != store.root)
    for theirs in having(roots, announced.weight_version, announced.digest):
        try:
            return _link(store, theirs, announced, threads=threads)
        except (OSError, WeightsError) as error:  # it is damaged, or has just been collected
            _log.debug("%s: %s", theirs.folder, error)
    return None


def _link(store: SnapshotStore, theirs: Snapshot, announced: Announcement, *, threads: int) -> Snapshot:
    """Publish a version by links. Raises WeightsError if its bytes are wrong, OSError if they are gone."""
    manifest = announced.what_it_covers(theirs.manifest)
    draft = store.draft(theirs.weight_version)
    for name, blob in blobs(manifest).items():
        path = draft.path(name)
        path.hardlink_to(theirs.path(name))
        if not theirs.path(name).exists():  # its writer may have seen no link before it wrote into it again
            raise WeightsError(f"{theirs.folder}: was collected meanwhile")
        if wrong_pieces(map_file(path), blob.piece_bytes, blob.digests, threads=threads):
            raise WeightsError(f"{theirs.path(name)}: differs from its digests")
    return store.publish(draft, manifest)
