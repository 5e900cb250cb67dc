"""Each sample of a run has its cursor once, a group comes whole, and a receipt forgets what is before it."""

import pytest

from rl_agent.pool.runtime.results import Run
from rl_agent.pool.schemas import EndedRequest, RunRequest


@pytest.fixture
def run():
    return Run("r", 0)


def submit(run, name, group=None):
    run.submit(RunRequest(id=name, prompt_token_ids=(1,), max_tokens=1, group=group))


def end(run, name, group=None):
    """The ids and cursors that its end lets a consumer see."""
    shown = run.end(EndedRequest(cursor=0, id=name, group=group, is_completed=False, failure="so"))
    run.show(shown)
    return [(sample.id, sample.cursor) for sample in shown]


def test_a_sample_without_a_group_has_the_next_cursor(run):
    submit(run, "a")
    submit(run, "b", "g")
    assert end(run, "b", "g") == [("b", 1)]
    assert end(run, "a") == [("a", 2)]


def test_a_group_comes_whole_and_other_groups_do_not_wait_for_it(run):
    for name in ("a0", "a1", "b0", "b1"):
        submit(run, name, name[0])
    assert [end(run, name, name[0]) for name in ("a1", "b0")] == [[], []]
    assert not run.samples
    assert end(run, "b1", "b") == [("b0", 1), ("b1", 2)]
    assert end(run, "a0", "a") == [("a1", 3), ("a0", 4)]
    assert not run.held and not run.open_in


def test_a_group_is_held_for_what_is_submitted_later(run):
    submit(run, "a0", "a")
    submit(run, "a1", "a")
    assert end(run, "a0", "a") == []
    submit(run, "a2", "a")
    assert end(run, "a1", "a") == []
    assert [name for name, _ in end(run, "a2", "a")] == ["a0", "a1", "a2"]


def test_what_ended_before_or_was_never_submitted_is_an_error(run):
    submit(run, "a")
    end(run, "a")
    for name in ("a", "b"):
        with pytest.raises(KeyError):
            end(run, name)
    assert run.ids == {"a"}


def test_acknowledgement_removes_earlier_samples_and_no_unseen_sample(run):
    for name in "abc":
        submit(run, name)
        end(run, name)
    run.acknowledge(2)
    assert [sample.cursor for sample in run.samples] == [3]
    run.acknowledge(1)
    assert run.acknowledged == 2, "a late receipt takes nothing back"
    run.acknowledge(99)
    assert (run.acknowledged, run.newest, len(run.samples)) == (3, 3, 0)


def test_a_run_is_finished_when_all_that_ended_was_shown(run):
    assert run.is_finished
    submit(run, "a")
    assert not run.is_finished
    shown = run.end(EndedRequest(cursor=0, id="a", group=None, is_completed=False, failure="so"))
    assert not run.is_finished, "the journal does not have it yet"
    run.show(shown)
    assert run.is_finished
