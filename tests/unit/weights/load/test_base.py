"""Verified bytes are those that are loaded."""

from rl_agent.weights.publish.publish import Publisher
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import open_store, random_state, settings


def test_memory_that_is_written_again_is_told_from_what_it_was(tmp_path):
    with open_store(tmp_path, keep_versions=1) as small:
        publisher = Publisher(small, settings("never"))
        first = publisher.publish(1, StateDict.of(random_state(1)))
        inode, _, modified = first.stamp()
        publisher.publish(2, StateDict.of(random_state(2)))
        third = publisher.publish(3, StateDict.of(random_state(3)))  # in the memory of the first
        assert third.stamp()[0] == inode
        assert third.stamp()[2] > modified
