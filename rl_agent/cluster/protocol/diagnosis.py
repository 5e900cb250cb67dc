"""Concludes from the shared folder which nodes live, who waits for whom, and what to do. Pure.

`doctor` uses it. A node lives if its record changes between two readings, some heartbeats apart; no other
host's clock is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rl_agent.cluster.protocol.records import RankRecord, View
from rl_agent.cluster.protocol.stragglers import missing_ranks, stragglers

_NOTHING_WRONG = (75, 129, 130, 143)
"""Exit codes of a run that was interrupted, or that something outside broke off."""


@dataclass(frozen=True, slots=True)
class FolderPolls:
    """The folder as it was read twice."""

    view: View
    records: Mapping[str, RankRecord]
    """The records of the second reading, by incarnation."""
    beating: frozenset[str]
    """Incarnations whose record changed in between."""
    master_beats: bool
    stopped: frozenset[str] = frozenset()
    """Incarnations that are a process of this host which is stopped (SIGSTOP)."""


def diagnose(look: FolderPolls) -> tuple[list[str], list[str]]:
    """Return lines that describe the run, and lines that advise what to do (none if all is well)."""
    return [*_header(look), *_nodes(look), *_waits(look)], list(_advice(look))


def _header(look: FolderPolls) -> Iterator[str]:
    view = look.view
    nodes = "1 node" if len(view.weights) == 1 else f"{len(view.weights)} nodes"
    yield f"run {view.run_id}, attempt {view.attempt}, {nodes}"
    if view.ended is not None:
        yield f"ended with status {view.ended.status}: {view.ended.reason}"
    elif view.order is None:
        yield "phase      none yet: the run is starting"
    else:
        decision = view.decisions.get(str(view.order.key))
        state = f"decided: {decision.outcome}" if decision else "not decided"
        yield f"phase      {view.order.phase} of iteration {view.order.iteration}, {state}"


def _nodes(look: FolderPolls) -> Iterator[str]:
    for member in look.view.members:
        record = look.records.get(member.incarnation)
        where = f"{member.name}, process {record.process.pid}" if record else member.name
        kind = ", joined" if member.is_joiner else ""
        yield f"  {where}{kind}: {_state(look, member.incarnation, member.status, member.reason)}"
        if record is not None and member.status == "alive" and look.view.ended is None:
            yield f"      at: {record.doing}, for {record.doing_s:.0f} s{_chunks(record)}"
    for record in _strangers(look):
        rank = "a joiner" if record.rank is None else f"rank {record.rank}"
        reason = look.view.refused.get(record.incarnation)
        state = f"refused: {reason}" if reason else "waits to be admitted"
        yield f"  {rank} ({record.host}), process {record.process.pid}: {state}"


def _state(look: FolderPolls, incarnation: str, status: str, reason: str) -> str:
    if status != "alive":
        return f"{status}: {reason}"
    if look.view.ended is not None:
        return "was there at the end"
    if incarnation in look.stopped:
        return "STOPPED (SIGSTOP)"
    return "alive" if incarnation in look.beating else "SILENT"


def _chunks(record: RankRecord) -> str:
    work = record.work
    if work is None or not work.claimed:
        return ""
    return f"; {len(work.completed)} of {len(work.claimed)} claimed chunks done"


def _strangers(look: FolderPolls) -> Sequence[RankRecord]:
    """Return the nodes that are alive and not members."""
    members = {member.incarnation for member in look.view.members}
    living = [look.records[incarnation] for incarnation in sorted(look.beating - members)]
    return [record for record in living if record.state != "left"]


def _waits(look: FolderPolls) -> Iterator[str]:
    view = look.view
    if view.ended is not None:
        return
    if view.order is None:
        yield f"rank 0 ({view.host}) waits for {missing_ranks(view)}"
        return
    key = view.order.key
    if str(key) in view.decisions:
        yield f"the others wait for the next order of rank 0 ({view.host})"
        return
    for straggler in stragglers(view, look.records.get, key):
        yield f"{key.phase} of iteration {key.iteration} waits for {straggler}"


def _advice(look: FolderPolls) -> Iterator[str]:
    view = look.view
    if view.ended is not None:
        if view.ended.status != 0:
            again = "the same command" if len(view.weights) == 1 else "the same command at every node, rank 0"
            first = "" if view.ended.status in _NOTHING_WRONG else "correct what the reason names; then "
            yield f"{first}{again} with --resume goes on"
        return
    if not look.master_beats and view.master in look.stopped:
        yield f"rank 0 ({view.host}) is stopped (SIGSTOP): kill -CONT {look.records[view.master].process.pid}"
        return
    if not look.master_beats:
        yield (
            f"rank 0 ({view.host}) sends no heartbeat: the others stop after {view.lease_s:.0f} s."
            f" Look at {_process(look, view.master)} there; if it is gone, start all nodes again,"
            " rank 0 with --resume"
        )
        return
    for member in view.members:
        is_silent = member.status == "alive" and member.incarnation not in look.beating
        if member.incarnation in look.stopped:
            yield f"{member.name} is stopped: kill -CONT {look.records[member.incarnation].process.pid}"
        elif is_silent and member.incarnation != view.master:
            yield (
                f"{member.name} sends no heartbeat: it is declared dead after {view.lease_s:.0f} s"
                f", and others take its work. Look at {_process(look, member.incarnation)} there"
            )
    if (missing := missing_ranks(view)) != "nobody":
        yield f"{missing} may be started (again) at any time, with the same command as before"


def _process(look: FolderPolls, incarnation: str) -> str:
    record = look.records.get(incarnation)
    return f"process {record.process.pid}" if record else "its process"
