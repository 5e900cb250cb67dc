"""How a node sees the master: by the newest View that names it. Pure; `Member` feeds it what the file says.

    waiting ──► named in a View ──► follows it ──► the master is silent, has ended, or has dropped this node

A View that does not name this node proves nothing: it may be a leftover. Age is counted between looks, by
this node's clock, since the beat last changed.
"""

from rl_agent.cluster.protocol.protocol import observed
from rl_agent.cluster.protocol.records import Places, View
from rl_agent.errors import ConfigError, RetryLater


class Follower:
    """`see` after every look at the file."""

    def __init__(self, incarnation: str, places: Places, *, lease_s: float, now: float) -> None:
        self.view: View | None = None
        """The newest that names this node."""
        self.answers: str | None = None
        """The master of this run whose View was seen last."""
        self.silent_s = 0.0
        self._incarnation = incarnation
        self._places = places
        self._lease_s = lease_s
        self._now = now
        self._stranger: View | None = None

    def see(self, found: View | None, now: float) -> bool:
        """What is new in the file, if anything is; whether `view` or `answers` has changed.

        Raises RetryLater if the master is lost or has given this node up, ConfigError if it refuses it.
        """
        self.silent_s += observed(now - self._now, self._lease_s)
        self._now = now
        is_change = False
        if found is not None:
            is_change = self._wait(found) if self.view is None else self._follow(self.view, found)
        view = self.view
        if view is not None and self.silent_s > self._lease_s and view.ended is None:
            raise RetryLater(
                f"the master, rank 0 ({view.host}), has been silent for {self.silent_s:.0f} s;"
                " the same commands, with --resume on the master, go on from what is on the disk"
            )
        return is_change

    def _wait(self, found: View) -> bool:
        if (found.run_id, found.attempt) != self._places:
            self._check_stranger(found)
            return False
        if found.master == self.answers and self._incarnation in found.refused:
            reason = found.refused[self._incarnation]
            raise ConfigError(f"the master, rank 0 ({found.host}), refuses this node: {reason}")
        is_change = found.master != self.answers
        self.answers = found.master
        if found.member(self._incarnation) is not None:
            self.view, self.silent_s, is_change = found, 0.0, True
        elif found.ended is not None:
            raise RetryLater(f"the run has ended before this node came: {found.ended.reason}")
        return is_change

    def _check_stranger(self, found: View) -> None:
        """Another run in this log path, and alive: its beat changes."""
        known = self._stranger
        if known is not None and known.master == found.master and known.beat != found.beat:
            raise RetryLater(
                f"run {found.run_id}, attempt {found.attempt}, uses this log path; start this node again"
            )
        self._stranger = found

    def _follow(self, view: View, found: View) -> bool:
        if found.master != view.master:
            if found.term > view.term:
                raise RetryLater(
                    f"a new master, rank 0 ({found.host}), has taken over this log path; start this one again"
                )
            return False
        if found.beat <= view.beat:
            return False
        self.silent_s = 0.0
        self.view = found
        member = found.member(self._incarnation)
        if member is None or member.status == "dead":
            reason = member.reason if member else "not a member any more"
            raise RetryLater(f"the master, rank 0 ({found.host}), has given this node up: {reason}")
        return found.number != view.number
