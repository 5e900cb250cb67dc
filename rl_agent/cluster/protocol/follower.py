"""Follows the master of a run by the newest View that names this node. Pure; `Member` reads the file.

    waiting ──► named in a View ──► follows it ──► the master is silent, has ended, or has dropped this node

A View that does not name this node proves nothing: an earlier run may have left it. Silence is counted by
this node's clock, from poll to poll, since the heartbeat last changed.
"""

from rl_agent.cluster.protocol.protocol import counted_silence_s
from rl_agent.cluster.protocol.records import ClusterPaths, View
from rl_agent.errors import ConfigError, RetryLater


class Follower:
    """The master as one node sees it; `update` is called after every poll of the file."""

    def __init__(self, incarnation: str, places: ClusterPaths, *, lease_s: float, now: float) -> None:
        self.view: View | None = None
        """The newest View that names this node."""
        self.answers: str | None = None
        """Incarnation of the master of this run whose View was read last."""
        self.silent_s = 0.0
        self._incarnation = incarnation
        self._places = places
        self._lease_s = lease_s
        self._now = now
        self._stranger: View | None = None

    def update(self, content: View | None, now: float) -> bool:
        """Take the new content of the file, if there is one; return whether `view` or `answers` has changed.

        Raises RetryLater if the master is lost or has declared this node dead, ConfigError if it refuses it.
        """
        self.silent_s += counted_silence_s(now - self._now, self._lease_s)
        self._now = now
        is_change = False
        if content is not None:
            is_change = (
                self._before_admission(content) if self.view is None else self._follow(self.view, content)
            )
        view = self.view
        if view is not None and self.silent_s > self._lease_s and view.ended is None:
            raise RetryLater(
                f"the master, rank 0 ({view.host}), has been silent for {self.silent_s:.0f} s;"
                " start all nodes again, the master with --resume"
            )
        return is_change

    def _before_admission(self, view: View) -> bool:
        if (view.run_id, view.attempt) != self._places:
            self._check_stranger(view)
            return False
        if view.master == self.answers and self._incarnation in view.refused:
            reason = view.refused[self._incarnation]
            raise ConfigError(f"the master, rank 0 ({view.host}), refuses this node: {reason}")
        is_change = view.master != self.answers
        self.answers = view.master
        if view.member(self._incarnation) is not None:
            self.view, self.silent_s, is_change = view, 0.0, True
        elif view.ended is not None:
            raise RetryLater(f"the run ended before this node joined: {view.ended.reason}")
        return is_change

    def _check_stranger(self, view: View) -> None:
        """Raises RetryLater if another run lives in this log path: its heartbeat changes."""
        earlier_view = self._stranger
        if earlier_view is not None and earlier_view.master == view.master and earlier_view.beat != view.beat:
            raise RetryLater(
                f"run {view.run_id}, attempt {view.attempt}, uses this log path; start this node again"
            )
        self._stranger = view

    def _follow(self, view: View, new_view: View) -> bool:
        if new_view.master != view.master:
            if new_view.term > view.term:
                raise RetryLater(
                    f"a new master, rank 0 ({new_view.host}), has taken over this log path; start this"
                    " one again"
                )
            return False
        if new_view.beat <= view.beat:
            return False
        self.silent_s = 0.0
        self.view = new_view
        member = new_view.member(self._incarnation)
        if member is None or member.status == "dead":
            reason = member.reason if member else "it is not a member any more"
            raise RetryLater(f"the master, rank 0 ({new_view.host}), has declared this node dead: {reason}")
        return new_view.number != view.number
