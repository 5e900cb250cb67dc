"""Every chunk is completed by one counted owner, or retired and replaced; whatever happens, in any order.

The model below is the truth that the master cannot see: who holds which claim, and what lies in which file.
It tells the master late, in old versions, or never.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.cluster.protocol.events import ChunksPublished, ClaimFound, ReadShard, ShardRead
from rl_agent.cluster.protocol.ledger import ChunkLedger, Salvage
from rl_agent.cluster.protocol.records import PhaseKey
from tests.unit.cluster.cluster_states import LEASE_S, MASTER, Run, report

KEY = PhaseKey(3, "rollout")
NODES = {MASTER: 0, "m1": 1, "m2": 2}


def a_ledger(episodes, chunk_tasks=2):
    groups = [[index] for index in range(episodes)]
    return ChunkLedger(KEY, "d", 1).publish(groups, chunk_tasks)


def publish(run, episodes, chunk_tasks=2):
    run.do(ChunksPublished(KEY, [[index] for index in range(episodes)], chunk_tasks, "d", 1))


def tell(run, name, **work):
    run.see(name, NODES[name], work=report(KEY, **work))


def counted(run, files):
    """Count each episode; a file is a list of the episodes recorded in it, in order."""
    return Counter(
        episode for part in run.state.ledger.extents for episode in files[part.name][: part.cut_bytes]
    )


@pytest.fixture
def run():
    return Run(2, ranks=[1])


def test_a_dead_nodes_records_count_to_its_cut_and_the_rest_is_reissued(run):
    publish(run, episodes=4)
    tell(run, "m1", shard="s1", claimed=[0])
    run.look_for(LEASE_S + 1)
    assert [(c.incarnation, c.shard) for c in run.commands if isinstance(c, ReadShard)] == [("m1", "s1")]
    run.do(ShardRead(KEY, "m1", Salvage(1, {0})))
    assert run.state.ledger.batches[1].chunks == ((1,),)
    tell(run, MASTER, shard="s0", claimed=[1, 2], completed=[1, 2])
    assert run.state.ledger.is_complete
    assert counted(run, {"s0": [2, 3, 1], "s1": [0, 1]}) == Counter(range(4))


def test_a_phase_is_not_complete_before_the_file_of_a_dead_node_was_read(run):
    publish(run, episodes=2)
    tell(run, "m1", shard="s1", claimed=[0], completed=[0])
    assert run.state.ledger.is_complete
    run.look_for(LEASE_S + 1)
    assert not run.state.ledger.is_complete
    run.do(ShardRead(KEY, "m1", Salvage(2, {0, 1})))
    assert run.state.ledger.is_complete and run.state.ledger.extents[0].cut_bytes == 2


def test_a_node_that_finishes_with_chunks_undone_hands_them_back(run):
    publish(run, episodes=2)
    run.see("m1", 1, work=report(KEY, claimed=[0]), flags={KEY: "failed"})
    assert run.state.ledger.batches[1].chunks == ((0, 1),)


def test_a_node_that_finishes_with_everything_done_keeps_its_whole_file(run):
    publish(run, episodes=2)
    work = report(KEY, shard="s1", claimed=[0], completed=[0])
    run.see("m1", 1, work=work, flags={KEY: "done"})
    assert run.state.ledger.is_complete and run.state.ledger.extents[0].cut_bytes is None


def test_an_unreported_claim_of_a_dead_owner_is_replaced_once_found(run):
    publish(run, episodes=4)
    run.look_for(LEASE_S + 1)
    run.do(ClaimFound(KEY, 1, "m1", 1))
    assert run.state.ledger.batches[1].chunks == ((2, 3),)


def test_reports_of_a_dead_node_that_wakes_up_do_not_count(run):
    publish(run, episodes=2)
    tell(run, "m1", shard="s1", claimed=[0])
    run.look_for(LEASE_S + 1)
    run.do(ShardRead(KEY, "m1", Salvage(0, frozenset())))
    tell(run, "m1", shard="s1", claimed=[0, 1], completed=[0, 1])
    assert not run.state.ledger.is_complete
    tell(run, MASTER, shard="s0", claimed=[1], completed=[1])
    assert run.state.ledger.is_complete and [part.name for part in run.state.ledger.extents] == ["s0"]


def test_an_empty_phase_is_complete_from_the_start():
    run = Run(1)
    publish(run, episodes=0)
    assert run.state.ledger.is_complete and run.state.ledger.extents == []


def test_additions_to_a_phase_are_done_and_earlier_work_is_not_repeated():
    run = Run(1)
    publish(run, episodes=2)
    tell(run, MASTER, shard="s0", claimed=[0], completed=[0])
    assert run.state.ledger.is_complete
    publish(run, episodes=5, chunk_tasks=1)
    assert [batch.chunks for batch in run.state.ledger.batches] == [((0, 1),), ((2,), (3,), (4,))]
    assert not run.state.ledger.is_complete
    publish(run, episodes=5)
    assert len(run.state.ledger.batches) == 2
    with pytest.raises(ValueError, match="3/rollout is closed"):
        run.state.ledger.close().publish([[5]], 1)


def test_a_file_is_cut_once_also_if_it_is_read_again_later():
    ledger = a_ledger(episodes=2).report("m1", 1, report(KEY, shard="s1", claimed=[0])).lose("m1")
    ledger = ledger.salvage("m1", Salvage(1, {0}))
    assert ledger.salvage("m1", Salvage(2, {0, 1})) == ledger


def test_a_chunk_has_one_owner_also_if_two_say_that_they_have_it():
    ledger = a_ledger(episodes=2).report("m1", 1, report(KEY, shard="s1", claimed=[0], completed=[0]))
    twice = ledger.report("m2", 2, report(KEY, shard="s2", claimed=[0], completed=[0]))
    assert twice.chunks == ledger.chunks


# --- and in any order ---
@dataclass
class TrueNode:
    """The state at a node, whatever the master knows."""

    name: str
    has_file: bool = False
    file: list = field(default_factory=list)
    claimed: list = field(default_factory=list)
    completed: list = field(default_factory=list)
    is_gone: bool = False

    def snapshot(self):
        shard = f"s-{self.name}" if self.has_file else None
        return {"shard": shard, "claimed": list(self.claimed), "completed": list(self.completed)}


class TrueCluster:
    """Nodes that work, and a master that hears of it late."""

    def __init__(self, episodes, chunk_tasks):
        self.run = Run(3, ranks=[1, 2])
        self.nodes = {name: TrueNode(name) for name in NODES}
        self.written = {name: [] for name in NODES}
        self.claims = {}
        self.pending = []
        self.episodes = episodes
        publish(self.run, episodes, chunk_tasks)

    def chunks(self):
        return {chunk: entry.indices for chunk, entry in self.run.state.ledger.chunks.items()}

    def more(self, count):
        """The master publishes the whole phase again, which has grown."""
        self.episodes += count
        publish(self.run, self.episodes, chunk_tasks=1)

    def claim(self, name, pick):
        """Creating the claim is exclusive; a node that was given up may still do it."""
        free = [chunk for chunk in self.chunks() if chunk not in self.claims]
        if free:
            chunk = free[pick % len(free)]
            self.claims[chunk] = name
            self.nodes[name].claimed.append(chunk)

    def record(self, name, pick):
        """An episode becomes durable; the file is made known before its first one."""
        node = self.nodes[name]
        todo = [c for c in node.claimed if c not in node.completed]
        if not todo:
            return
        if not node.has_file:
            node.has_file = True
            self.write(name)
            if not node.is_gone:
                self.hear(name, len(self.written[name]))
        chunk = todo[pick % len(todo)]
        left = [episode for episode in self.chunks()[chunk] if episode not in node.file]
        node.file.extend(left[:1])
        if len(left) <= 1:
            node.completed.append(chunk)

    def write(self, name):
        self.written[name].append(self.nodes[name].snapshot())

    def hear(self, name, version):
        """The master reads a record that the node wrote at some time: never an older one than before."""
        if written := self.written[name]:
            tell(self.run, name, **written[min(version, len(written)) - 1])
            self.take_commands()

    def lose(self, name, how):
        node = self.nodes[name]
        if name == MASTER or node.is_gone:
            return
        node.is_gone = True
        if how == "leave":
            self.write(name)
            self.run.see(name, NODES[name], state="left", work=report(KEY, **node.snapshot()))
        else:
            others = [(n, NODES[n]) for n in NODES if not self.nodes[n].is_gone and n != MASTER]
            self.run.look_for(LEASE_S + 1, beating=others)
        self.take_commands()

    def take_commands(self):
        self.pending += [c for c in self.run.commands if isinstance(c, ReadShard)]
        self.run.commands.clear()

    def read_a_file(self):
        if self.pending:
            command = self.pending.pop(0)
            file = self.nodes[command.shard.removeprefix("s-")].file
            self.run.do(ShardRead(KEY, command.incarnation, Salvage(len(file), frozenset(file))))
            self.take_commands()

    def find_claim(self, pick):
        if self.claims:
            chunk = sorted(self.claims)[pick % len(self.claims)]
            name = self.claims[chunk]
            self.run.do(ClaimFound(KEY, chunk, name, NODES[name]))
            self.take_commands()

    def finish(self):
        """Everybody who is left works on until there is nothing; the master hears everything."""
        for _ in range(10_000):
            if self.run.state.ledger.is_complete:
                return
            for pick in range(len(self.claims)):
                self.find_claim(pick)
            while self.pending:
                self.read_a_file()
            self.claim(MASTER, 0)
            for name, node in self.nodes.items():
                if not node.is_gone:
                    self.record(name, 0)
                    self.write(name)
                    self.hear(name, len(self.written[name]))
        raise AssertionError("never complete")


NAMES = st.sampled_from(sorted(NODES))
PICK = st.integers(0, 30)
STEPS = st.one_of(
    *[st.tuples(st.just("claim"), NAMES, PICK)] * 2,
    *[st.tuples(st.just("record"), NAMES, PICK)] * 3,
    st.tuples(st.just("write"), NAMES),
    st.tuples(st.just("hear"), NAMES, PICK),
    st.tuples(st.just("lose"), NAMES, st.sampled_from(["leave", "die"])),
    st.tuples(st.just("read_a_file")),
    st.tuples(st.just("find_claim"), PICK),
    st.tuples(st.just("more"), st.integers(0, 3)),
)


@given(st.integers(0, 20), st.integers(1, 4), st.lists(STEPS, min_size=30, max_size=80))
def test_every_episode_counts_exactly_once_whatever_happens(episodes, chunk_tasks, steps):
    cluster = TrueCluster(episodes, chunk_tasks)
    for action, *words in steps:
        getattr(cluster, action)(*words)
    cluster.finish()
    files = {f"s-{name}": node.file for name, node in cluster.nodes.items()}
    assert counted(cluster.run, files) == Counter(range(cluster.episodes))
    owned = [entry.owner for entry in cluster.run.state.ledger.chunks.values() if entry.status == "done"]
    assert all(owned)
