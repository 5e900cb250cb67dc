"""Rounds are shown, the newest whole, older ones as lines, and never more than is allowed."""

import pytest

from rl_agent.chat.context.window import (
    ContextLimits,
    ContextView,
    Round,
    first_whole,
    images_of,
    line_of,
    opening,
    views,
)
from rl_agent.types import Observation

NOW = Observation("now", ("now.png",))


def rounds(count: int, *, images: int = 1) -> list[Round]:
    return [
        Round(Observation(f"page {n}\nmore", tuple(f"{n}-{i}.png" for i in range(images))), f"r{n}", f"a{n}")
        for n in range(count)
    ]


def window(**changed) -> ContextLimits:
    return ContextLimits(kind="window", **changed)


def test_everything_is_shown_whatever_it_takes():
    limits = ContextLimits(kind="everything", max_images=1, max_rounds=1)
    assert views(limits, rounds(70), NOW, ContextView()) == [ContextView()]


@pytest.mark.parametrize(
    ("limits", "count", "first"),
    [
        (window(), 70, 0),
        (window(max_rounds=4), 3, 0),
        (window(max_rounds=4), 70, 66),
        (window(max_rounds=0), 70, 70),
        (window(max_images=5), 4, 0),
        (window(max_images=5), 70, 66),
        (window(max_images=1), 70, 70),
        (window(max_images=5, max_rounds=2), 70, 68),
    ],
)
def test_the_first_whole_round_follows_from_images_and_rounds(limits, count, first):
    assert first_whole(limits, rounds(count), NOW, ContextView()) == first
    seen = images_of(ContextView(first), rounds(count), NOW)
    assert seen[-1] == "now.png" and len(seen) <= (limits.max_images or 71)


def test_rounds_without_images_do_not_count_as_images():
    mixed = [*rounds(3), *rounds(20, images=0)]
    assert first_whole(window(max_images=3), mixed, NOW, ContextView()) == 1
    assert first_whole(window(max_images=1), mixed, NOW, ContextView()) == 3
    assert first_whole(window(max_images=1), rounds(20, images=0), NOW, ContextView()) == 0


def test_answered_images_are_shown_even_beyond_the_limit():
    many = Observation("now", ("a.png", "b.png", "c.png"))
    assert images_of(ContextView(5), rounds(5), many) == ["a.png", "b.png", "c.png"]
    assert first_whole(window(max_images=2), rounds(5), many, ContextView()) == 5


def test_parts_left_out_stay_left_out():
    assert first_whole(window(max_rounds=4), rounds(5), NOW, ContextView(3)) == 3
    shorter = views(window(), rounds(6), NOW, ContextView(whole_from=3, as_lines=1))
    assert shorter[0] == ContextView(3, 1)
    assert shorter[1] == ContextView(4, 2)  # the two that were dropped do not come back as lines


def test_views_get_shorter_down_to_the_observation_alone():
    shorter = views(window(max_images=3), rounds(10), NOW, ContextView())
    assert [(view.whole_from, view.as_lines) for view in shorter] == [
        (8, 8), (9, 9), (10, 10), (10, 5), (10, 2), (10, 1), (10, 0),
    ]  # fmt: skip


def test_only_the_newest_of_the_older_rounds_are_lines():
    shorter = views(window(max_images=3, max_lines=5), rounds(20), NOW, ContextView())
    assert shorter[0] == ContextView(18, 5)
    shown = opening(shorter[0], rounds(20), NOW)
    assert "(13 earlier steps are not shown)\n14. page 13 -> a13" in shown
    assert "18. page 17 -> a17" in shown
    grown = views(window(max_images=3, max_lines=5), rounds(21), NOW, shorter[0])
    assert grown[0] == ContextView(19, 5)


def test_older_rounds_are_lines_with_place_action_and_effect():
    first, second, third = rounds(3)
    unchanged = Round(second.observation, "r", "click 1 2", changed=False)
    wrong = Round(third.observation, "r", "", invalid=True)
    shown = opening(ContextView(3, 3), [first, unchanged, wrong], NOW)
    assert shown == (
        "page 0\nmore\n\nEarlier steps:\n1. page 0 -> a0\n"
        "2. page 1 -> click 1 2 (nothing changed)\n3. page 2 -> (no action) (not understood)"
    )


def test_the_first_observations_task_stays_unless_it_is_repeated_later():
    task = Round(Observation("Buy a lamp.\nPage: shop"), "r", "search lamp")
    assert opening(ContextView(1, 0), [task], Observation("page 2")).startswith("Buy a lamp.")
    repeated = opening(ContextView(1, 0), [task], Observation("Buy a lamp.\nPage: shop\nFound 3."))
    assert repeated == "Earlier steps:\n(1 earlier step is not shown)"
    assert opening(ContextView(), [task], NOW) == ""


def test_a_summary_stands_for_what_is_not_shown():
    shown = opening(ContextView(2, 1, "Found the lamp."), rounds(3), NOW)
    assert "Summary of the earlier steps:\nFound the lamp." in shown
    assert "2. page 1 -> a1" in shown and "1. page 0" not in shown and "not shown" not in shown


@pytest.mark.parametrize("action", ["x" * 100_000, "a\n\n\nb\x00" * 5000, "🙂" * 9999, "\n" * 99_999])
def test_a_line_is_one_short_line_whatever_the_model_wrote(action):
    line = line_of(0, Round(Observation("p" * 100_000), action, action))
    assert len(line.splitlines()) == 1 and len(line) < 350
