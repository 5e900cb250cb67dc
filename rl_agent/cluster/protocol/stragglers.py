"""Describes the nodes that a phase waits for, and what they say they are doing. Pure."""

from collections.abc import Callable

from rl_agent.cluster.protocol.records import MemberView, PhaseKey, RankRecord, View

RecordOf = Callable[[str], RankRecord | None]
"""Takes a member's incarnation; returns its record."""


def stragglers(view: View, record_of: RecordOf, key: PhaseKey, *, besides: str = "") -> list[str]:
    """Describe the members that a phase waits for, except the incarnation `besides`."""
    order = view.order if view.order is not None and view.order.key == key else None
    lines = []
    for member in view.members:
        awaited = member.incarnation in order.participants if order else not member.is_joiner
        if member.status != "alive" or not awaited or member.incarnation == besides:
            continue
        record = record_of(member.incarnation)
        if record is None or str(key) not in record.flags:
            lines.append(f"{member.name}, {_doing(record)}")
    return lines


def doing_of(view: View | None, record_of: RecordOf, rank: int) -> str:
    """Describe what the node of a rank is doing."""
    member = _alive(view, rank)
    return f"{member.name}, {_doing(record_of(member.incarnation))}" if member else f"rank {rank}"


def missing_ranks(view: View | None) -> str:
    """List the ranks that no living node has; "nobody" if there is none."""
    if view is None:
        return "the others"
    missing = [rank for rank in range(len(view.weights)) if _alive(view, rank) is None]
    return ", ".join(f"rank {rank}" for rank in missing) or "nobody"


def _alive(view: View | None, rank: int) -> MemberView | None:
    members = view.members if view else ()
    return next((m for m in members if m.rank == rank and m.status == "alive"), None)


def _doing(record: RankRecord | None) -> str:
    return f"at: {record.doing}, for {record.doing_s:.0f} s" if record else "which has not written its record"
