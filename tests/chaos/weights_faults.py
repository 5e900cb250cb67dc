"""Transfers of weights under a fault at a chosen point, one seed a run.

    python -m tests.chaos.weights_faults [--runs 260] [--seed 0]

Each run: a receiver that serves one version is to get another, in full or by differences, over a link or from
a sender that fails at 0, 1, 50, 99 or 100 % of the bytes. Its store is on disk or in memory, keeps one
version, and writes into the memory of the one before, unless an engine still has that mapped. Meanwhile one
witness takes from the receiver whatever it gives of the version, and another opens the version in its folder,
as engines do. Whatever happened: the call has ended in time, and as the fault lets it; the store has the old
version, or the new one right to the bit; neither witness met a wrong byte; the old mapping is unchanged; and
a second try, without faults, goes on with what is right, succeeds and leaves no draft. All faults at all
points come up in 65 seeds in a row. Who is stopped sleeps (SIGSTOP) for longer than the other side waits.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rl_agent.errors import WeightsError
from rl_agent.paths import PROJECT_ROOT
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.store.store import FULL, SnapshotStore, open_snapshot, version_name
from tests.chaos.weights_damage import damage, link_fault
from tests.chaos.weights_witnesses import Engine, Witness
from tests.support.weight_links import Link, once_after
from tests.support.weight_transfers import (
    SERVER,
    TOKEN,
    Host,
    announced,
    host,
    receive,
    source_at,
    with_fetch,
)
from tests.unit.weights.weight_versions import publish_steps

POINTS = (0.0, 0.01, 0.5, 0.99, 1.0)
FAULTS = (
    "cut once",
    "cut for good",
    "byte flipped",
    "bytes flipped all the time",
    "old version damaged",
    "silent",
    "trickle",
    "slow",
    "too slow",
    "sender killed",
    "receiver killed",
    "sender stopped",
    "receiver stopped",
)
CELLS = len(FAULTS) * len(POINTS)
ARRIVES = ("cut once", "byte flipped", "old version damaged", "slow")
"""Faults that the first try gets over, wherever they strike."""
FAILS = ("cut for good", "silent", "trickle", "too slow", "sender killed", "receiver killed")
"""Faults that it does not get over, up to the middle; later, luck decides. So it does of wrong bytes."""

TARGET = 4
IDLE_S = 0.5
PIECE_S = 4.0
WITHIN_S = {"too slow": 4.0}
"""Seconds that the receiver has for the whole, else 40: then no deadline ends a fault."""
ENDS_IN_S = {
    "silent": 16.0,
    "trickle": 45.0,
    "too slow": 8.0,
    "receiver killed": 60.0,
    "receiver stopped": 60.0,
}
"""Three tries until the idle timeout, or until that of a piece, by differences and then in full; until the
whole's; else 15 s, for nothing waits."""

STOPPED_S = 6 * IDLE_S
IN_A_PROCESS = {"receiver killed": signal.SIGKILL, "receiver stopped": signal.SIGSTOP}

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Case:
    fault: str
    point: float
    by_delta: bool
    in_memory: bool
    base: int
    """The version that the receiver has."""
    is_mapped: bool
    """True if an engine still has the version before that one mapped."""

    @classmethod
    def of(cls, seed: int) -> "Case":
        choices = random.Random(seed)
        fault, point = divmod(seed % CELLS, len(POINTS))
        turn = seed // CELLS
        return cls(
            FAULTS[fault],
            POINTS[point],
            turn % 2 == 0,
            turn // 2 % 2 == 0,
            choices.choice((2, 3)),
            choices.random() < 0.5,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    arrived: bool
    """True if it arrived at the first try, in spite of the fault."""
    took_s: float
    pieces: int
    """Pieces that a witness was given."""
    looks: int
    """Looks that another had at the whole version."""


class Stage:
    """A sender's store, what is in it, and how many bytes an undisturbed transfer has."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content: dict[int, bytes] = {}
        with publish_steps(root, TARGET, rows=16_000) as store:
            for weight_version in store.versions:
                with store.hold(weight_version) as snapshot:
                    self.content[weight_version] = bytes(snapshot.map(FULL))
            self.target = store.newest
        self._passing: dict[tuple[bool, int], int] = {}

    def announced(self, weight_version: int) -> Announcement:
        return announced(open_snapshot(self.root, weight_version))

    @contextmanager
    def sender(self) -> Iterator[Host]:
        with host(SnapshotStore(self.root, keep_versions=9)) as running:
            yield running

    def position(self, case: Case) -> int:
        """Place of the byte at which the fault strikes, among all that come from the sender."""
        kind = (case.by_delta, case.base)
        if kind not in self._passing:
            with (
                tempfile.TemporaryDirectory() as root,
                self.sender() as sender,
                open_receiver(Path(root), case) as receiver,
                Link(sender.server.address, lambda _, content, __: content) as link,
            ):
                self.bring(receiver, sender, case)
                _, report = receive(receiver, self.announced(TARGET), [source_at(link.address)])
                assert report.deltas == (TARGET - case.base if case.by_delta else 0)
                self._passing[kind] = link.passed_bytes
        return min(int(case.point * self._passing[kind]), self._passing[kind] - 1)

    def bring(self, receiver: Host, sender: Host, case: Case) -> memoryview:
        """The receiver to its first version and from there to its second; the first as an engine sees it."""
        receive(receiver, self.announced(1), [sender.source])
        seen = open_snapshot(receiver.store.root, 1).map(FULL) if case.is_mapped else self.content[1]
        receive(receiver, self.announced(case.base), [sender.source])
        (receiver.store.root / "draft-000003-of-one-that-nobody-wants").mkdir()
        return memoryview(seen)


def run(stage: Stage, root: Path, seed: int) -> Outcome:
    """One run in an empty folder; AssertionError if anything is not as it must be."""
    case = Case.of(seed)
    at = stage.position(case)
    with Engine(root, TARGET, stage.content[TARGET]) as engine:
        with open_receiver(root, case) as receiver:
            with stage.sender() as sender:
                mapped = stage.bring(receiver, sender, case)
            if case.fault not in IN_A_PROCESS:
                arrived, took_s, pieces = disturbed(stage, receiver, case, at, seed)
        if case.fault in IN_A_PROCESS:
            arrived, took_s, pieces = signalled(stage, root, case, at)
        assert mapped == stage.content[1], "what an engine has mapped was written into"
        if case.fault in ARRIVES:
            assert arrived, "it did not get over the fault"
        if case.fault in FAILS and case.point <= 0.5:
            assert not arrived, "it says that it has what it cannot have"
        with stage.sender() as sender, open_receiver(root, case) as receiver:
            check_content(receiver, stage, TARGET if arrived else case.base)
            _, report = receive(receiver, stage.announced(TARGET), [sender.source])
            check_content(receiver, stage, TARGET)
        if case.fault in FAILS and case.point == 0.5 and not case.by_delta:
            assert report.resumed_bytes > 0, "what was verified is fetched again"
    assert not [*root.glob("draft-*")], "a draft was left"
    return Outcome(case, arrived, took_s, pieces, engine.looks)


def open_receiver(root: Path, case: Case) -> "contextlib.AbstractContextManager[Host]":
    fetch = with_fetch(piece_timeout_s=PIECE_S, retries=2)
    server = replace(SERVER, idle_timeout_s=IDLE_S)
    store = SnapshotStore(root, keep_versions=1)
    return host(store, fetch=fetch, server=server, max_deltas=4 if case.by_delta else 0)


def check_content(receiver: Host, stage: Stage, weight_version: int) -> None:
    assert receiver.store.versions == [weight_version]
    with receiver.store.hold(weight_version) as snapshot:
        assert snapshot.map(FULL) == stage.content[weight_version], f"version {weight_version} is not right"


def disturbed(stage: Stage, receiver: Host, case: Case, at: int, seed: int) -> tuple[bool, float, int]:
    """Return whether the version arrived, the time at which that was known, and the pieces given on."""
    with ExitStack() as stack:
        if case.fault in ("sender killed", "sender stopped"):
            sender = stack.enter_context(other_process("--send", stage.root))
            assert sender.stdout is not None
            number = signal.SIGKILL if case.fault == "sender killed" else signal.SIGSTOP
            address, kill = ("127.0.0.1", int(sender.stdout.readline())), partial(send, sender, number)
        else:
            address, kill = stack.enter_context(stage.sender()).server.address, lambda: None
        if case.fault == "old version damaged":
            damage(open_snapshot(receiver.store.root, case.base).path(FULL), case.point)
        link = stack.enter_context(Link(address, link_fault(case.fault, at, seed, kill)))
        witness = stack.enter_context(Witness(receiver, stage.target.manifest))
        attempt = Attempt(receiver, stage, link, WITHIN_S.get(case.fault, 40.0))
        attempt.start()
        attempt.join(ENDS_IN_S.get(case.fault, 15.0))
        assert not attempt.is_alive(), "it has not ended"
        if attempt.crash is not None:
            raise attempt.crash
        if attempt.arrived:
            witness.see_all()
    assert not witness.wrong, f"wrong pieces were given on: {witness.wrong}"
    return attempt.arrived, attempt.took_s, witness.pieces


def signalled(stage: Stage, root: Path, case: Case, at: int) -> tuple[bool, float, int]:
    """A signal to a receiver's process once `at` bytes have passed; whether it has published at its end."""
    began = time.monotonic()
    receivers: list[subprocess.Popen[bytes]] = []
    with (
        stage.sender() as sender,
        Link(
            sender.server.address, once_after(at, lambda: send(receivers[0], IN_A_PROCESS[case.fault]))
        ) as link,
        other_process("--receive", root, link.address[1], stage.root, int(case.by_delta)) as receiver,
    ):
        receivers.append(receiver)
        receiver.wait(ENDS_IN_S[case.fault])
    return (root / version_name(TARGET)).exists(), time.monotonic() - began, 0


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    if number is signal.SIGSTOP:
        threading.Timer(STOPPED_S, process.send_signal, [signal.SIGCONT]).start()


@contextmanager
def other_process(*words: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.chaos.weights_faults", *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdin=pipe, stdout=pipe, process_group=0) as process:
        try:
            yield process
        finally:
            process.kill()


class Attempt(threading.Thread):
    """A fetch that may not end."""

    def __init__(self, receiver: Host, stage: Stage, link: Link, within_s: float) -> None:
        super().__init__(daemon=True)
        self._receiver = receiver
        self._stage = stage
        self._link = link
        self._within_s = within_s
        self.arrived = False
        self.took_s = 0.0
        self.crash: BaseException | None = None

    def run(self) -> None:
        began = time.monotonic()
        source = source_at(self._link.address, idle_timeout_s=IDLE_S)
        try:
            snapshot, _ = receive(
                self._receiver, self._stage.announced(TARGET), [source], timeout_s=self._within_s
            )
            self.arrived = snapshot.weight_version == TARGET
        except WeightsError:
            pass  # it says that it has failed
        except BaseException as error:
            self.crash = error
        self.took_s = time.monotonic() - began


def end_with_parent() -> None:
    """However that ends: it holds the other end of this process's input."""

    def end() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def send_in_this_process(root: str) -> None:
    with host(SnapshotStore(Path(root), keep_versions=9)) as sender:
        print(sender.server.address[1], flush=True)
        threading.Event().wait()


def receive_in_this_process(root: str, port: str, senders: str, by_delta: str) -> None:
    case = replace(Case.of(0), by_delta=by_delta == "1")
    with open_receiver(Path(root), case) as receiver:
        source = source_at(("127.0.0.1", int(port)), TOKEN, IDLE_S)
        receive(receiver, announced(open_snapshot(Path(senders), TARGET)), [source], timeout_s=40.0)


def run_in_a_folder(stage: Stage, seed: int) -> Outcome:
    """`run` on disk or in memory, as the seed says."""
    in_memory = Case.of(seed).in_memory and SHARED_MEMORY.is_dir()
    with tempfile.TemporaryDirectory(
        dir=SHARED_MEMORY if in_memory else None, prefix="weights-faults-"
    ) as root:
        return run(stage, Path(root), seed)


def run_many(seeds: Iterable[int]) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        for seed in seeds:
            try:
                yield run_in_a_folder(stage, seed)
            except BaseException as error:
                error.add_note(f"seed {seed}: {Case.of(seed)}")
                raise


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=4 * CELLS)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--receive", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.send or args.receive:
        end_with_parent()
    if args.send:
        return send_in_this_process(args.send)
    if args.receive:
        return receive_in_this_process(*args.receive)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and not without removing what is in memory
    outcomes = list(run_many(range(args.seed, args.seed + args.runs)))
    print("arrived at the first try, of the runs")
    print(f"{'fault':27s}{''.join(f'{point:>8.0%}' for point in POINTS)}   slowest  pieces    looks")
    for fault in FAULTS:
        cells = [[o for o in outcomes if (o.case.fault, o.case.point) == (fault, point)] for point in POINTS]
        shares = "".join(f"{f'{sum(o.arrived for o in cell)}/{len(cell)}':>8s}" for cell in cells)
        some = [outcome for cell in cells for outcome in cell]
        slowest = max((outcome.took_s for outcome in some), default=0.0)
        pieces, looks = sum(o.pieces for o in some), sum(o.looks for o in some)
        print(f"{fault:27s}{shares}  {slowest:6.1f} s  {pieces:6d}  {looks:7d}")
    print(f"{len(outcomes)} runs: none hung, none served a wrong byte, every second try succeeded")


if __name__ == "__main__":
    main()
