"""Small states of the protocol for its tests."""

from rl_agent.cluster.protocol.events import Polled, RecordChanged
from rl_agent.cluster.protocol.protocol import step
from rl_agent.cluster.protocol.records import ChunkReport, Flag, MemberView, PhaseKey, RankRecord, View
from rl_agent.cluster.protocol.state import ClusterState, MasterTerms

MASTER = "m0"
LEASE_S = 30.0


def record(
    incarnation, rank, *, beat=1, answers=MASTER, state="member", flags=None, seq=99, work=None, **fields
):
    """A node's report; `flags` maps a key to an outcome, reported under the order `seq`."""
    reported = {str(PhaseKey(*key)): Flag(outcome=outcome, seq=seq) for key, outcome in (flags or {}).items()}
    values = {
        "is_joiner": rank is None,
        "host": f"host-{incarnation}",
        "process": {"pid": 7, "start_ticks": 1},
        "doing": "testing",
        "doing_s": 0.0,
        "config_digest": "same",
        "reason": "",
    }
    own = {"incarnation": incarnation, "rank": rank, "beat": beat, "answers": answers, "state": state}
    return RankRecord(flags=reported, work=work, **{**values, **own, **fields})


def member(rank, incarnation=None, *, status="alive", reason=""):
    return MemberView(
        incarnation=incarnation or f"m{rank}",
        rank=rank,
        host=f"host-{rank}",
        weight=1,
        is_joiner=False,
        status=status,
        reason=reason,
    )


def view(**fields):
    values = {"number": 1, "beat": 1, "run_id": "run", "attempt": 1, "term": 1, "master": MASTER}
    values |= {"host": "host-0", "heartbeat_s": 2.0, "lease_s": LEASE_S, "config_digest": "d"}
    values |= {"weights": (1, 1), "members": (), "order": None}
    values |= {"refused": {}, "work": None, "decisions": {}, "ended": None}
    return View(**(values | fields))


def report(key, *, shard=None, claimed=(), completed=()):
    return ChunkReport(
        iteration=key[0], phase=key[1], shard=shard, claimed=tuple(claimed), completed=tuple(completed)
    )


class Run:
    """A master, and the reports that it has received."""

    def __init__(self, num_nodes=1, *, ranks=()):
        self.now = 0.0
        self.state = ClusterState(MasterTerms(MASTER, num_nodes, (1,) * num_nodes, 1.0, LEASE_S, "same"), 0.0)
        self.commands = []
        self.beats = {}
        self.see(MASTER, 0)
        for rank in ranks:
            self.see(f"m{rank}", rank)

    def do(self, event):
        """The commands that the event led to."""
        self.state, commands = step(self.state, event, self.now)
        self.commands += commands
        return commands

    def see(self, incarnation, rank, **fields):
        self.beats[incarnation] = self.beats.get(incarnation, 0) + 1
        return self.do(RecordChanged(record(incarnation, rank, beat=self.beats[incarnation], **fields)))

    def look_for(self, seconds, *, beating=()):
        """Time passes; of the nodes, those that are `beating` (incarnation, rank) are heard of."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for incarnation, rank in beating:
                self.see(incarnation, rank)
            self.do(Polled())

    def status(self, incarnation):
        return self.state.peers[incarnation].status

    def lines(self):
        return [command.line for command in self.commands if hasattr(command, "line")]
