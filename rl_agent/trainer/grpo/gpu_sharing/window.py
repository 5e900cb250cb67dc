"""Decides from measurements when an engine that shares the trainer's devices generates: pure functions.

    iteration ─► window open: the shared engine generates, the trainer only collects
                   │  colocated: until the iteration's last group is there
                   │  hybrid: `is_to_be_open`
                   ▼
                 window closed: the trainer trains, other engines go on with what was not finished

How long a window lasts at least is learnt (`next_length`). Let w be the seconds that the trainer waited for
groups after the window, and e those that another engine stood idle, on average. While w > 0 generation is
what takes long, and a longer window shortens it. Where w = 0 the trainer is what takes long, and a longer
window makes it end later. The others stand idle in both cases, since training cannot end before the last
groups are trained on and the weights published: for f seconds, which is what e is while w > 0. So

    T ← max(0, T + γ (w − max(0, e − f)))

with a step γ that is halved whenever the difference changes its sign, and grows again where it does not: how
steeply it falls depends on how fast the shared engine is beside the others, which is not known. The best T
depends on how many others there are; what was learnt is kept for each number of them, and a number not met
yet begins with the nearest one's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rl_agent.config.sections.grpo import Placement

LARGEST_STEP = 0.5
GROWTH = 1.5
WAITED_SHARE = 0.1
"""The share of e below which a trainer waited between two groups, not for the end of generation."""
RISE = 0.3
"""The smoothing factor by which f follows an e above it."""


@dataclass(frozen=True, slots=True)
class WindowState:
    """The known facts at one moment; of the pool, None where its manager does not answer."""

    open_s: float
    """Seconds for which the window has been open."""
    groups: int
    """The number of groups that the trainer could train on now."""
    others_ready: int | None
    """Engines besides the shared one that serve what is wanted."""
    has_work: bool
    """Requests run at the shared engine, or wait for any, or are expected to come."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The waiting times of one iteration."""

    trainer_s: float
    """The trainer waited for groups, its window being closed."""
    engines_s: float
    """Another engine stood idle, on average."""


def is_to_be_open(placement: Placement, seen: WindowState, *, is_open: bool, length_s: float) -> bool:
    """Decide whether the shared engine generates now; asked only while groups are still to come."""
    if placement == "colocated":
        return True
    if seen.others_ready is None:
        return is_open
    if seen.others_ready == 0:
        # Nobody else goes on: as long as the trainer has something to do first, that is done first.
        return is_open or seen.groups == 0
    if not is_open:
        return False
    if seen.groups == 0:
        return True
    return seen.open_s < length_s and seen.has_work


@dataclass(frozen=True, slots=True)
class LearntWindow:
    """The lessons about the window with a certain number of other engines."""

    length_s: float = 0.0
    step: float = LARGEST_STEP
    difference_s: float = 0.0
    """w − max(0, e − f) of the iteration before."""
    floor_s: float = 0.0
    """f."""


def next_length(before: LearntWindow, waits: Waits) -> LearntWindow:
    """Compute the next length from what was measured with a window of this one."""
    floor_s = _floor(before.floor_s, waits)
    difference_s = waits.trainer_s - max(0.0, waits.engines_s - floor_s)
    has_turned = difference_s * before.difference_s < 0
    step = before.step / 2 if has_turned else min(LARGEST_STEP, before.step * GROWTH)
    return LearntWindow(max(0.0, before.length_s + step * difference_s), step, difference_s, floor_s)


def _floor(before_s: float, waits: Waits) -> float:
    """Compute f after an iteration with these waits; it is unknown until the trainer has waited once."""
    if waits.trainer_s <= WAITED_SHARE * waits.engines_s:
        return min(before_s, waits.engines_s)
    if before_s == 0 or waits.engines_s < before_s:
        return waits.engines_s
    return before_s + RISE * (waits.engines_s - before_s)


def window_for(windows: Mapping[int, LearntWindow], others: int) -> LearntWindow:
    """Look up what was learnt for so many other engines, else the length for the nearest number."""
    if not windows:
        return LearntWindow()
    nearest = min(windows, key=lambda number: (abs(number - others), number))
    return windows[nearest] if nearest == others else LearntWindow(windows[nearest].length_s)


def learn(windows: Mapping[int, LearntWindow], others: int, waits: Waits) -> dict[int, LearntWindow]:
    """Learn from an iteration that ended with so many other engines; without any, length does not matter."""
    if others == 0:
        return dict(windows)
    return dict(windows) | {others: next_length(window_for(windows, others), waits)}
