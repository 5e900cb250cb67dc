"""Numbers on a command line, and how one that is none is named."""

import argparse

import pytest

from rl_agent.cli import _numbers as numbers

REFUSED = [
    (numbers.finite, ["", "x", "nan", "inf", "-inf", "1e999"], "is not a number"),
    (numbers.not_negative, ["-0.1"], "is below 0"),
    (numbers.not_negative, ["nan"], "is not a number"),
    (numbers.above_0, ["0", "-1", "-0.0"], "is not above 0"),
    (numbers.seconds, ["0"], "is not above 0"),
    (numbers.seconds, ["1e30"], "seconds"),
    (numbers.whole_from_1, ["0", "-1", "1.0", "1e3", "", "1000001", "٣", "9" * 5000], "from 1 to 1000000"),
    (numbers.recorded_from_1, ["0", "1000000000", "9" * 5000], "from 1 to 999999999"),
    (numbers.recorded_from_0, ["-1", "1000000000"], "from 0 to 999999999"),
]


@pytest.mark.parametrize(
    ("kind", "text", "why"), [(k, text, why) for k, texts, why in REFUSED for text in texts]
)
def test_numbers_out_of_range_are_quoted_with_their_range(kind, text, why):
    with pytest.raises(argparse.ArgumentTypeError, match=why) as refused:
        kind(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (numbers.finite, "-1.5", -1.5),
        (numbers.not_negative, "0", 0.0),
        (numbers.above_0, "1e-9", 1e-9),
        (numbers.seconds, "0.5", 0.5),
        (numbers.whole_from_1, "1000000", 1_000_000),
        (numbers.recorded_from_1, "999999999", 999_999_999),
        (numbers.recorded_from_0, "2000000", 2_000_000),
    ],
)
def test_the_ends_of_a_range_belong_to_it(kind, text, value):
    assert kind(text) == value
