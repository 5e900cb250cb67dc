"""Pieces are here, are given in an order, and wait for a cap."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.throttle import Throttle
from rl_agent.weights.format.pieces import PieceSet, bits_to_text, text_to_bits

ALL = np.ones(6, np.bool_)


@given(st.lists(st.booleans(), max_size=40))
def test_a_set_of_pieces_survives_being_written_and_read(bits):
    assert text_to_bits(bits_to_text(np.array(bits, np.bool_)), len(bits)).tolist() == bits


@pytest.mark.parametrize(
    ("text", "message"), [("0", "cannot be read"), ("zz", "cannot be read"), ("00", "another")]
)
def test_a_damaged_set_of_pieces_is_refused(text, message):
    with pytest.raises(WeightsError, match=message):
        text_to_bits(text, 20)


def test_receivers_that_ask_at_once_are_recommended_different_pieces():
    pieces = PieceSet(6, is_complete=True)
    rounds = [pieces.recommend(ALL, 2, wait_s=0) for _ in range(3)]
    assert sorted(index for indices in rounds for index in indices) == list(range(6))


def test_only_pieces_that_are_here_and_wanted_are_recommended():
    pieces = PieceSet(6)
    for index in (1, 3):
        pieces.add(index)
    wanted = ALL.copy()
    wanted[1] = False
    assert pieces.recommend(wanted, 6, wait_s=0) == [3]


def test_a_recommendation_waits_for_a_piece_to_come():
    pieces, recommended = PieceSet(6), []
    waiting = threading.Thread(target=lambda: recommended.extend(pieces.recommend(ALL, 1, wait_s=30)))
    waiting.start()
    pieces.add(4)
    waiting.join(30)
    assert recommended == [4]


def test_a_recommendation_does_not_wait_past_its_time():
    assert PieceSet(6).recommend(ALL, 1, wait_s=0.01) == []


def test_a_cap_spaces_bytes_by_their_number_whoever_sends_them():
    now = [100.0]
    throttle = Throttle(1000.0, clock=lambda: now[0])
    assert [throttle.take(500), throttle.take(500), throttle.take(500)] == [0.0, 0.5, 1.0]
    now[0] += 10
    assert throttle.take(500) == 0.0
    assert Throttle(None).take(10**12) == 0.0
