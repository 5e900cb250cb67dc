"""Each sample of a run has its cursor once, a group comes whole, and a receipt forgets what is before it."""

import pytest

from rl_agent.pool.runtime.results import ClockOffsets, Run, Submission, failed_sample
from rl_agent.pool.schemas import BatchItem


def submit(run, name, group=None, *, holds_group=False):
    run.submit(
        Submission(BatchItem(id=name, prompt_token_ids=(1,), max_tokens=1, group=group), holds_group, 9.0)
    )


def end(run, name, group=None):
    """The ids and cursors that its end lets a consumer see."""
    shown = run.end(failed_sample(name, group, "so"))
    run.show(shown)
    return [(one.id, one.cursor) for one in shown]


def test_a_sample_that_waits_for_nobody_has_the_next_cursor():
    run = Run("r")
    submit(run, "a")
    submit(run, "b", "g")
    assert end(run, "b", "g") == [("b", 1)]
    assert end(run, "a") == [("a", 2)]


def test_a_group_comes_whole_and_other_groups_do_not_wait_for_it():
    run = Run("r")
    for name in ("a0", "a1", "b0", "b1"):
        submit(run, name, name[0], holds_group=True)
    assert [end(run, name, name[0]) for name in ("a1", "b0")] == [[], []]
    assert not run.samples
    assert end(run, "b1", "b") == [("b0", 1), ("b1", 2)]
    assert end(run, "a0", "a") == [("a1", 3), ("a0", 4)]
    assert not run.held and not run.group_open


def test_a_group_of_which_more_is_submitted_later_is_held_for_the_later_ones_too():
    run = Run("r")
    submit(run, "a0", "a", holds_group=True)
    submit(run, "a1", "a", holds_group=True)
    assert end(run, "a0", "a") == []
    submit(run, "a2", "a", holds_group=True)
    assert end(run, "a1", "a") == []
    assert [name for name, _ in end(run, "a2", "a")] == ["a0", "a1", "a2"]


def test_without_a_group_nothing_is_held():
    run = Run("r")
    submit(run, "a", None, holds_group=True)
    submit(run, "b", None, holds_group=True)
    assert end(run, "a") == [("a", 1)]


def test_what_ended_before_or_was_never_submitted_is_an_error():
    run = Run("r")
    submit(run, "a")
    end(run, "a")
    for name in ("a", "b"):
        with pytest.raises(KeyError):
            run.end(failed_sample(name, None, "so"))
    assert run.ids == {"a"}


def test_a_receipt_forgets_what_is_before_it_and_counts_no_sample_that_nobody_saw():
    run = Run("r")
    for name in "abc":
        submit(run, name)
        end(run, name)
    run.acknowledge(2)
    assert [one.cursor for one in run.samples] == [3]
    run.acknowledge(1)
    assert run.acknowledged == 2, "a late receipt takes nothing back"
    run.acknowledge(99)
    assert (run.acknowledged, len(run.samples)) == (3, 0)


def test_a_run_is_finished_when_all_that_ended_was_shown():
    run = Run("r")
    assert run.is_finished
    submit(run, "a")
    assert not run.is_finished
    shown = run.end(failed_sample("a", None, "so"))
    assert not run.is_finished, "the journal does not have it yet"
    run.show(shown)
    assert run.is_finished


def test_a_deadline_is_by_the_clock_that_nobody_sets_and_after_a_boot_by_the_wall():
    stamp = ClockOffsets(epoch=-1000.0, boot=-50.0, boot_id="one").stamp(7.0)
    later = ClockOffsets(epoch=-2000.0, boot=-60.0, boot_id="one")
    assert later.deadline(stamp) == 57.0 - 60.0
    assert ClockOffsets(-2000.0, -60.0, "another").deadline(stamp) == 1007.0 - 2000.0
    assert ClockOffsets(-2000.0, -60.0, "").deadline((1007.0, "", 57.0)) == 1007.0 - 2000.0
