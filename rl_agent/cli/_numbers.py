"""Numbers of the command line: `type=` of an argument that must be finite and in a range."""

import argparse
import math

from rl_agent.config.sections.base import MAX_SECONDS

MAX_COUNT = 1_000_000
MAX_RECORDED = 10**9 - 1
"""Iterations and episodes that a search may name: a run has as many as it has."""


def finite(text: str) -> float:
    """Any number but nan and infinity."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number


def not_negative(text: str) -> float:
    number = finite(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return number


def above_0(text: str) -> float:
    number = finite(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return number


def seconds(text: str) -> float:
    """Read a wait, above 0 and not longer than a system call can wait."""
    number = above_0(text)
    if number > MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is above {MAX_SECONDS:g} seconds")
    return number


def whole_from_1(text: str) -> int:
    """Read a count of at least 1."""
    return _whole(text, 1)


def recorded_from_1(text: str) -> int:
    """Read the number of something that a run may have recorded, from 1."""
    return _whole(text, 1, MAX_RECORDED)


def recorded_from_0(text: str) -> int:
    """Read a number of recorded things, 0 for all of them."""
    return _whole(text, 0, MAX_RECORDED)


def _whole(text: str, least: int, most: int = MAX_COUNT) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)
