"""Verified bytes are those that are loaded."""

from rl_agent.weights.publish.publish import Publisher
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import open_store, random_state, settings


def test_memory_of_a_version_nobody_reads_is_used_under_a_new_stamp(tmp_path):
    with open_store(tmp_path, keep_versions=1) as store:
        publisher = Publisher(store, settings("never"))
        states = [StateDict.of(random_state(seed)) for seed in (1, 2, 3)]
        stamps = [publisher.publish(number, state).stamp() for number, state in enumerate(states, 1)]
    inodes = [inode for inode, _, _ in stamps]
    assert inodes[2] == inodes[0] != inodes[1]
    assert stamps[2][2] > stamps[0][2]
