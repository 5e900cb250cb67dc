"""Threads that fail loudly, and waits that say for whom."""

import threading

import pytest

from rl_agent.cluster.member.polling import PollingThread, Wait
from rl_agent.errors import DeadlineError, RetryLater, StoreError

PATIENCE_S = 15.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Polled:
    """Turns that do what they are told, in virtual time, and what became of them."""

    def __init__(self, turn=None):
        self.clock, self.lines, self.failure, self.error = Clock(), [], None, None
        self.turns = PollingThread(
            "test",
            turn or self.turn,
            fail=self.fail,
            log=self.lines.append,
            clock=self.clock,
            retry_s=PATIENCE_S,
        )

    def turn(self):
        if self.error is not None:
            raise self.error
        return 2.0

    def fail(self, error):
        self.failure = error


def test_a_folder_that_fails_for_a_moment_is_reported_and_tried_again():
    polled = Polled()
    polled.error = StoreError("disk full")
    pause_s = polled.turns.poll_once()
    assert 0 < pause_s < PATIENCE_S and "disk full; trying again" in polled.lines[0]
    polled.error = None
    assert polled.turns.poll_once() == 2.0
    polled.clock.now, polled.error = PATIENCE_S, StoreError("disk full")
    assert polled.turns.poll_once() is not None and polled.failure is None


def test_a_folder_that_goes_on_failing_ends_the_thread_with_its_error():
    polled = Polled()
    polled.error = StoreError("disk full")
    polled.turns.poll_once()
    polled.clock.now = PATIENCE_S
    assert polled.turns.poll_once() is None and polled.failure is polled.error and len(polled.lines) == 1


@pytest.mark.parametrize("error", [RetryLater("given up"), KeyError("a bug")])
def test_any_other_error_ends_the_thread_at_once_and_is_told(error):
    polled = Polled()
    polled.error = error
    assert polled.turns.poll_once() is None and polled.failure is error


def test_a_stopped_thread_ends_and_a_wake_advances_its_next_poll():
    turned = threading.Semaphore(0)

    def turn():
        turned.release()
        return 3600.0

    turns = Polled(turn).turns
    turns.start()
    assert turned.acquire(timeout=10)
    turns.wake()
    assert turned.acquire(timeout=10)
    turns.stop()
    assert not turns._thread.is_alive()


def a_wait(clock, *, threads=(), timeout_s=100.0, lines=None, who="rank 2 (b)"):
    log = [].append if lines is None else lines.append
    more = {"timeout_s": timeout_s, "lease_s": 30.0, "threads": threads}
    return Wait("iteration 3, train", lambda: who, **more, log=log, clock=clock)


def test_a_wait_names_the_awaited_every_few_seconds_and_then_seldom():
    clock, lines = Clock(), []
    wait = a_wait(clock, lines=lines, timeout_s=1000.0)
    for second in range(200):
        clock.now = float(second)
        wait.check()
    seconds = [*range(5, 126, 10), 185]
    assert lines == [f"iteration 3, train: waiting for rank 2 (b), {s} s so far" for s in seconds]


def test_a_node_that_waits_for_itself_alone_is_silent_until_the_deadline():
    clock, lines = Clock(), []
    wait = a_wait(clock, lines=lines, who="")
    clock.now = 99.0
    wait.check()
    assert not lines
    clock.now = 100.0
    with pytest.raises(DeadlineError, match="waited 100 s for this node itself"):
        wait.check()


def test_a_wait_ends_at_its_deadline_with_the_name():
    clock = Clock()
    wait = a_wait(clock, timeout_s=100.0)
    clock.now = 99.5
    assert wait.check() == 0.5
    clock.now = 100.0
    with pytest.raises(DeadlineError, match=r"iteration 3, train: waited 100 s for rank 2 \(b\)"):
        wait.check()


class Hanging:
    count = 7


def test_a_thread_hanging_in_the_file_system_ends_the_wait_after_a_lease():
    clock = Clock()
    wait = a_wait(clock, threads=[Hanging()])
    with pytest.raises(RetryLater, match="the shared folder has not answered for 31 s"):
        for second in range(100):
            clock.now = float(second)
            wait.check()
    assert clock.now == 31.0


def test_a_stopped_process_does_not_take_its_pause_for_a_hanging_folder():
    clock, turns = Clock(), Hanging()
    wait = a_wait(clock, threads=[turns], timeout_s=10_000.0)
    wait.check()
    clock.now = 1000.0
    wait.check()
    turns.count += 1
    clock.now = 1001.0
    wait.check()
