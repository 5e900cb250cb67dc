"""Pieces are fetched a second time only where that is clearly sooner."""

import pytest

from rl_agent.weights.download.endgame import ClaimedPiece, worth_a_second_fetch


def held(index=1, *, ahead=0, for_s=0.0, pace_s=None):
    return ClaimedPiece(index, ahead, for_s, pace_s)


@pytest.mark.parametrize(
    ("others", "own_pace_s", "worth"),
    [
        ([], 0.1, set()),
        # Near the end of every transfer: the last pieces are nearly there.
        ([held(for_s=0.05, pace_s=0.1)], 0.1, set()),
        ([held(for_s=0.05)], None, set()),
        # It is at it for long, and nobody knows what a piece takes it.
        ([held(for_s=1.1)], 0.1, {1}),
        ([held(for_s=1.1)], 2.0, set()),
        ([held(for_s=3.1)], 2.0, {1}),
        # Who has brought nothing himself waits a little longer.
        ([held(for_s=1.1)], None, set()),
        ([held(for_s=2.1)], None, {1}),
        # A source that is known to be slow, asked just now; and one that is nearly through.
        ([held(for_s=0.1, pace_s=9.0)], 0.5, {1}),
        ([held(for_s=8.5, pace_s=9.0)], 0.5, set()),
        # One that was fast, and is stuck now.
        ([held(for_s=1.2, pace_s=0.1)], 0.1, {1}),
        # What it has not begun comes after what it is at.
        ([held(1, for_s=0.4), held(2, ahead=1, for_s=0.4), held(3, ahead=2, for_s=0.4)], 0.1, {3}),
        ([held(2, ahead=3, for_s=0.0, pace_s=0.5)], 0.1, {2}),
        # Somebody who is fast is at it already; one who has brought nothing is no reason to wait again.
        ([held(for_s=9.0, pace_s=20.0), held(for_s=0.1, pace_s=0.2)], 0.1, set()),
        ([held(for_s=9.0), held(for_s=0.1)], 0.1, {1}),
        ([held(for_s=9.0, pace_s=20.0), held(for_s=0.1)], 0.1, {1}),
    ],
)
def test_a_piece_is_fetched_twice_if_that_would_clearly_end_sooner(others, own_pace_s, worth):
    assert worth_a_second_fetch(others, own_pace_s) == worth
