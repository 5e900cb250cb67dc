"""Transfers of weights under a random fault at a chosen point, one seed a run.

    python -m tests.chaos.weights_faults [--runs 200] [--seed 0]

Each run: a receiver that serves version 1 is to get version 2, in full or as a delta, over a link or from a
sender that fails at 0, 1, 50, 99 or 100 % of the bytes. Meanwhile a witness takes from the receiver whatever
it gives of version 2. Afterwards, whatever happened: the call has ended in time; the receiver has version 1,
unchanged, and version 2 only if it is right to the bit; the witness got no wrong byte; and a second try,
without faults, succeeds.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rl_agent.errors import WeightsError
from rl_agent.paths import PROJECT_ROOT
from rl_agent.weights.checksums import digest
from rl_agent.weights.deadline import Deadline
from rl_agent.weights.pieces import PieceSet
from rl_agent.weights.store import FULL, Snapshot, SnapshotStore
from tests.unit.weight_versions import publish_steps
from tests.weight_transfers import (
    FETCH,
    SERVER,
    TOKEN,
    Fault,
    Host,
    Link,
    announced,
    cut_at,
    flip_at,
    flip_often,
    host,
    receive,
    source_at,
)

POINTS = (0.0, 0.01, 0.5, 0.99, 1.0)
FAULTS = (
    "cut once",
    "cut for good",
    "byte flipped",
    "bytes flipped all the time",
    "silent",
    "slow",
    "sender stops",
    "receiver killed",
)
ENDS_WITHIN_S = 30.0
_IDLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    fault: str
    point: float
    by_delta: bool
    arrived: bool
    """At the first try, in spite of the fault."""
    took_s: float
    witnessed_pieces: int


def prepare(root: Path) -> Path:
    """A store with versions 1 and 2, a small step apart."""
    publish_steps(root, 2, rows=4000).close()
    return root


def run(sender_root: Path, root: Path, seed: int) -> Outcome:
    """One run; AssertionError if anything is not as it must be."""
    choices = random.Random(seed)
    fault, point, by_delta = choices.choice(FAULTS), choices.choice(POINTS), choices.random() < 0.5
    with host(SnapshotStore(sender_root, keep_versions=9)) as sender:
        with sender.store.hold(1) as one, sender.store.hold(2) as two:
            versions = {1: bytes(one.map(FULL)), 2: bytes(two.map(FULL))}
            target = two
        receiver_root = root / "receiver"
        with open_receiver(receiver_root, by_delta) as receiver:
            receive(receiver, announced(one), [sender.source])
        size_bytes = target.manifest.delta.blob.size_bytes if by_delta else target.manifest.full.size_bytes
        at = int(point * size_bytes)
        began = time.monotonic()
        if fault == "receiver killed":
            arrived, witnessed = killed(sender, receiver_root, target, by_delta, at), 0
        else:
            arrived, witnessed = faulty(sender, receiver_root, target, by_delta, fault, at, seed)
        took_s = time.monotonic() - began
        assert took_s < ENDS_WITHIN_S, f"took {took_s:.0f} s"
    with (
        host(SnapshotStore(sender_root, keep_versions=9)) as sender,
        open_receiver(receiver_root, by_delta) as receiver,
    ):
        assert receiver.store.versions == ([1, 2] if arrived else [1])
        check_content(receiver, versions)
        receive(receiver, announced(target), [sender.source])
        assert receiver.store.versions == [1, 2]
        check_content(receiver, versions)
    return Outcome(fault, point, by_delta, arrived, took_s, witnessed)


def open_receiver(root: Path, by_delta: bool):
    fetch = replace(FETCH, piece_timeout_s=2.0, retries=2)
    server = replace(SERVER, idle_timeout_s=_IDLE_S)
    store = SnapshotStore(root, keep_versions=9)
    return host(store, fetch=fetch, server=server, max_deltas=4 if by_delta else 0)


def check_content(receiver: Host, versions: dict[int, bytes]) -> None:
    for weight_version in receiver.store.versions:
        with receiver.store.hold(weight_version) as snapshot:
            assert snapshot.map(FULL) == versions[weight_version], f"version {weight_version} is not right"


def faulty(
    sender: Host, root: Path, target: Snapshot, by_delta: bool, fault: str, at: int, seed: int
) -> tuple[bool, int]:
    """Whether the version arrived over a link with this fault, and how many pieces the witness took."""
    with (
        open_receiver(root, by_delta) as receiver,
        Link(sender.server.address, link_fault(fault, at, seed, sender)) as link,
        Witness(receiver, target) as witness,
    ):
        try:
            source = source_at(link.address, idle_timeout_s=_IDLE_S)
            snapshot, _ = receive(receiver, announced(target), [source], timeout_s=10.0)
        except WeightsError:
            arrived = False
        else:
            arrived = snapshot.weight_version == 2
    witness.check()
    return arrived, witness.pieces


def link_fault(fault: str, at: int, seed: int, sender: Host) -> Fault | None:
    def stop_sender(_: socket.socket, content: bytes, before: int) -> bytes:
        if before + len(content) > at and not stopped:
            stopped.append(threading.Thread(target=sender.server.__exit__, args=(None, None, None)))
            stopped[0].start()
        return content

    def slow(_: socket.socket, content: bytes, before: int) -> bytes:
        time.sleep(len(content) / 1e6 if before > at else 0)  # a link of a megabyte a second
        return content

    stopped: list[threading.Thread] = []
    return {
        "cut once": cut_at(at),
        "cut for good": lambda _, content, before: content if before <= at else None,
        "byte flipped": flip_at(at),
        "bytes flipped all the time": flip_often(seed, share=0.3),
        "silent": lambda _, content, before: content if before <= at else b"",
        "slow": slow,
        "sender stops": stop_sender,
    }[fault]


class Witness:
    """Takes from a receiver all it gives of a version, while it gives it, and checks every byte."""

    def __init__(self, receiver: Host, target: Snapshot) -> None:
        self._receiver = receiver
        self._target = target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self._wrong: list[int] = []
        self.pieces = 0

    def __enter__(self) -> "Witness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        assert not self._wrong, f"wrong pieces were served: {self._wrong}"

    def _take(self) -> None:
        blob = self._target.manifest.full
        had = PieceSet(len(blob.digests))
        while not self._stop.is_set() and not had.is_complete:
            connection = self._receiver.source.connection()
            try:
                connection.open(Deadline.after(5))
                while not self._stop.is_set() and not had.is_complete:
                    proposed = connection.recommend(2, FULL, had.missing(), 4, 0.1, Deadline.after(5))
                    for index in proposed:
                        start, end = blob.range_of(index)
                        content = memoryview(bytearray(end - start))
                        connection.read_piece(2, FULL, index, start, content, Deadline.after(5))
                        if digest(content) != blob.digests[index]:
                            self._wrong.append(index)
                        had.add(index)
                        self.pieces += 1
            except (OSError, WeightsError):
                self._stop.wait(0.01)  # it has nothing of the version yet, or is stopping
            finally:
                connection.close()


def killed(sender: Host, root: Path, target: Snapshot, by_delta: bool, at: int) -> bool:
    """SIGKILL to a receiver's process once `at` bytes have passed; whether it had published by then."""
    process: list[subprocess.Popen[bytes]] = []
    reached = threading.Event()

    def kill(_: socket.socket, content: bytes, before: int) -> bytes:
        if before + len(content) > at and not reached.is_set():
            reached.set()
            process[0].send_signal(signal.SIGKILL)
        return content

    with Link(sender.server.address, kill) as link:
        command = [sys.executable, "-m", "tests.chaos.weights_faults", "--receive", str(root)]
        command += [str(link.address[1]), target.manifest.digest, "4" if by_delta else "0"]
        process.append(subprocess.Popen(command, cwd=PROJECT_ROOT, start_new_session=True))
        with suppress(ProcessLookupError):
            process[0].wait(ENDS_WITHIN_S)
    return (root / "version-000002").exists()


def receive_in_this_process(root: str, port: str, content_digest: str, max_deltas: str) -> None:
    from rl_agent.weights.receive import Announcement

    with open_receiver(Path(root), max_deltas != "0") as receiver:
        source = source_at(("127.0.0.1", int(port)), TOKEN, _IDLE_S)
        receive(receiver, Announcement(2, content_digest), [source], timeout_s=10.0)


def run_many(seeds: range, *, on_outcome=None) -> list[Outcome]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        sender_root = prepare(Path(folder, "sender"))
        outcomes = []
        for seed in seeds:
            root = Path(folder, "run")
            shutil.rmtree(root, ignore_errors=True)
            try:
                outcomes.append(run(sender_root, root, seed))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
            if on_outcome:
                on_outcome(outcomes[-1])
        return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--receive", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.receive:
        receive_in_this_process(*args.receive)
        return
    outcomes = run_many(range(args.seed, args.seed + args.runs))
    counts = Counter(outcome.fault for outcome in outcomes)
    print(f"{'fault':28s} runs  arrived in spite of it  slowest  pieces witnessed")
    for fault in FAULTS:
        some = [outcome for outcome in outcomes if outcome.fault == fault]
        arrived = sum(outcome.arrived for outcome in some)
        slowest = max((outcome.took_s for outcome in some), default=0.0)
        witnessed = sum(outcome.witnessed_pieces for outcome in some)
        print(f"{fault:28s} {counts[fault]:4d}  {arrived:22d}  {slowest:5.1f} s  {witnessed:16d}")
    print(f"{len(outcomes)} runs: none hung, none served a wrong byte, every second try succeeded")


if __name__ == "__main__":
    main()
