"""A connection fetches a piece, a second one fetches it beside, and one of them may write it."""

import heapq
import threading
from dataclasses import dataclass
from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.weights.download.endgame import PATIENCE_S
from rl_agent.weights.download.piece_board import PieceBoard, PieceClaim
from rl_agent.weights.format.pieces import PieceSet


def board(pieces=6, verified=()):
    here, now = PieceSet(pieces), [100.0]
    for index in verified:
        here.add(index)
    return PieceBoard(here, clock=lambda: now[0]), now


def claim(source="source"):
    return PieceClaim(source, lambda: None)


def test_a_piece_is_one_connections_job_at_a_time():
    jobs, _ = board()
    first, second = claim("a"), claim("b")
    assert jobs.claim(first, [1, 2, 2, 99, -1]) == [1, 2]
    assert jobs.claim(second, [2, 3]) == [3]
    jobs.give_back(first)
    assert jobs.open_to("c").tolist() == [True, True, True, False, True, True]


def test_a_verified_piece_is_nobodys_job():
    jobs, _ = board(2)
    owner = claim()
    jobs.claim(owner, [0, 1])
    jobs.done(owner, 0)
    assert jobs.next(owner) == 1
    jobs.give_back(owner)
    assert jobs.claim(owner, [0, 1]) == [1]
    jobs.done(owner, 1)
    assert jobs.is_finished


def test_unbegun_pieces_of_a_slow_source_move_and_begun_ones_are_doubled():
    jobs, now = board(4, verified=[3])
    slow, fast = claim("slow"), claim("fast")
    jobs.claim(slow, [0, 1, 2])
    assert jobs.next(slow) == 0
    assert not jobs.open_to("fast").any()
    now[0] += 2 * PATIENCE_S + 0.1
    assert jobs.claim(fast, [0, 1, 2]) == [0, 1, 2]
    assert slow.indices == [0]
    assert jobs.next(fast) == 0
    jobs.done(fast, 0)
    assert jobs.next(slow) is None
    assert jobs.next(fast) == 1
    jobs.give_back(slow)
    jobs.give_back(fast)
    assert jobs.open_to("third").tolist() == [False, True, True, False]


def test_a_receiver_leaves_a_pieces_place_before_another_writes_there():
    jobs, _ = board(1)
    events, may_leave = [], threading.Event()
    slow, fast = PieceClaim("slow", may_leave.set), claim("fast")
    jobs.claim(slow, [0])
    assert jobs.take_place(slow, 0)
    assert not jobs.take_place(fast, 0)

    def receive():
        may_leave.wait(30)
        events.append("left")
        jobs.give_back(slow)

    receiving = threading.Thread(target=receive)
    receiving.start()
    with jobs.writing(fast, 0) as is_needed:
        events.append("writes")
        assert is_needed
        assert not jobs.take_place(slow, 0)
        jobs.done(fast, 0)
    receiving.join(30)
    assert events == ["left", "writes"]
    assert slow.was_cut
    with jobs.writing(slow, 0) as is_needed:
        assert not is_needed


def test_a_place_that_brought_bytes_wait_for_is_not_taken_again():
    jobs, _ = board(1)
    tries = []
    slow, fast = claim("slow"), claim("fast")

    def leave_and_return():
        jobs.give_back(slow)
        tries.append(jobs.take_place(slow, 0))

    slow.cut = leave_and_return
    jobs.claim(slow, [0])
    assert jobs.take_place(slow, 0)
    with jobs.writing(fast, 0) as is_needed:
        assert is_needed
    assert tries == [False]
    assert jobs.take_place(slow, 0)  # what was brought is written, or was not


def test_after_the_end_nobody_has_a_place_and_nobody_gets_one():
    jobs, _ = board(2)
    receiving = claim()
    jobs.claim(receiving, [0])
    jobs.take_place(receiving, 0)
    receiving.cut = lambda: jobs.give_back(receiving)
    jobs.close()
    assert not jobs.take_place(receiving, 1)
    with jobs.writing(receiving, 1) as is_needed:
        assert not is_needed


@dataclass(frozen=True)
class Model:
    """A source in virtual time."""

    pace_s: float
    streams: int = 2
    good: int = 10**6
    """Pieces that it brings; then it is at one for ever, with the rest of what it claimed."""


POLL_S, AT_ONCE = 0.2, 4


def finish_s(pieces, *models):
    """The time at which all pieces are there, and the number fetched in vain."""
    jobs, now = board(pieces)
    began, order, brought, in_vain = now[0], count(), dict.fromkeys(range(len(models)), 0), 0
    streams = [
        (number, claim(str(number))) for number, model in enumerate(models) for _ in range(model.streams)
    ]
    events = [(began, next(order), number, stream, None) for number, stream in streams]
    while not jobs.is_finished:
        now[0], _, number, stream, index = heapq.heappop(events)
        model = models[number]
        if index is not None:
            brought[number] += 1
            with jobs.writing(stream, index) as is_needed:
                in_vain += not is_needed
                if is_needed:
                    jobs.done(stream, index)
        index = jobs.next(stream)
        if index is None:
            jobs.give_back(stream)
            jobs.claim(stream, np.flatnonzero(jobs.open_to(stream.source))[:AT_ONCE].tolist())
            index = jobs.next(stream)
        if index is None:
            heapq.heappush(events, (now[0] + POLL_S, next(order), number, stream, None))
        elif brought[number] < model.good:
            heapq.heappush(events, (now[0] + model.pace_s, next(order), number, stream, index))
    return now[0] - began, in_vain


HONEST = Model(pace_s=0.005)


def test_a_slow_peer_that_claims_much_costs_a_moment_not_the_transfer():
    alone_s, _ = finish_s(258, HONEST)
    assert 0.6 < alone_s < 0.7
    assert finish_s(258, Model(pace_s=59.0), HONEST)[0] < alone_s + 2 * PATIENCE_S
    assert finish_s(258, Model(pace_s=1.0, good=0), HONEST)[0] < alone_s + 2 * PATIENCE_S
    assert finish_s(3, Model(pace_s=59.0), HONEST)[0] < 4 * PATIENCE_S


def test_sources_that_are_alike_fetch_nothing_twice():
    assert finish_s(258, HONEST, HONEST, HONEST)[1] == 0
    assert finish_s(60, *[Model(pace_s=0.9)] * 4)[1] == 0


MODELS = st.builds(
    Model, pace_s=st.floats(0.001, 100.0), streams=st.integers(1, 3), good=st.sampled_from([0, 1, 5, 10**6])
)


@given(st.lists(MODELS, max_size=4), st.integers(1, 60), st.floats(0.001, 3.0))
def test_other_sources_never_make_a_transfer_much_longer_than_one_honest(others, pieces, pace_s):
    honest = Model(pace_s, streams=2)
    alone_s, _ = finish_s(pieces, honest)
    took_s, _ = finish_s(pieces, *others, honest)
    streams = sum(model.streams for model in others)
    assert took_s <= 2.5 * alone_s + (streams + 2) * (2 * PATIENCE_S + 2 * pace_s)
