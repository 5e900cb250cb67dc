"""A streaming trainer in virtual time: iterations are submitted, groups trained on, versions published.

    version v ─► iterations that may begin are submitted ─► groups end, in any order
                                                                 │
    v + 1 ◄── publish ◄── update ◄── one group after the other ◄─┘

Iteration k begins when version k − 1 − `max_staleness` is published, and asks for nothing older; it is
trained on after iteration k − 1. The next turn of an episode is asked for when its environment has answered.
Where engines share the trainer's devices, it trains only while their window is closed. Where samples are
dealt to steps, a whole group is a portion for each step that has some of it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from rl_agent.pool.scheduler.records import Order, Request, RequestId
from rl_agent.simulation.speeds import TrainerSpeed
from rl_agent.simulation.work import Work
from rl_agent.simulation.world import RentedPool

FOREVER_S = 1e9

RECOMPUTE = {"presence_penalty": 0.1}
"""A parameter that a request cannot be continued with: what it had is thrown away when its engine goes."""


@dataclass(slots=True)
class VirtualEpisode:
    """One attempt: its turns are asked for one after the other, and trained on as one sequence."""

    iteration: int
    group: int
    sibling: int
    oldest: int
    """The oldest version that its iteration takes."""
    lengths: Sequence[int]
    """Chunks of the response of each turn."""
    pauses: Sequence[float]
    """Seconds after each."""
    turns: list[Request] = field(default_factory=list)
    """Those that have ended."""

    @property
    def chunks(self) -> int:
        """The chunks of all responses so far."""
        return sum(len(request.token_ids) for request in self.turns)


@dataclass(slots=True)
class Loop:
    """The trainer's loop in virtual time; `begin` starts it."""

    work: Work
    speed: TrainerSpeed
    max_staleness: int
    can_continue: bool
    """Requests go on from their tokens when their engine is gone."""
    open_window: Callable[[], bool] = lambda: False
    """Asked before a group is trained on: whether the trainer's devices generate now."""
    on_published: Callable[[], None] = lambda: None
    """Called at the end of an iteration, before what follows from it."""
    on_iteration: Callable[[], None] = lambda: None
    world: RentedPool = field(init=False)
    last_iteration: int | None = None
    """None: it goes on for ever."""
    version: int = 0
    submitted: int = 0
    """Iterations that have begun."""
    trained_samples: int = 0
    """The samples of the iteration that have been trained on."""
    step: int = 0
    """The step of the iteration, where its samples are dealt to steps."""
    trained_tokens: int = 0
    waiting_s: float = 0.0
    ready: dict[tuple[int, int], deque[list[VirtualEpisode]]] = field(default_factory=dict)
    """The whole groups that can be trained on at once, by iteration and step, as they ended."""
    _arrived: Counter[int] = field(default_factory=Counter)
    """Whole groups of each iteration."""
    _dealt: dict[int, list[list[int]]] = field(default_factory=dict)
    """The result of `Work.steps_of` for each iteration that is under way."""
    _episodes: dict[RequestId, VirtualEpisode] = field(default_factory=dict)
    """The episode of each request that was submitted."""
    _siblings: dict[tuple[int, int], list[VirtualEpisode]] = field(default_factory=dict)
    _waits_since: float | None = 0.0

    def begin(self, world: RentedPool) -> None:
        self.world = world
        self._submit()

    @property
    def iteration(self) -> int:
        """The one that is trained on, from 1."""
        return self.version + 1

    @property
    def has_ended(self) -> bool:
        return self.version == self.last_iteration

    @property
    def is_waiting(self) -> bool:
        """The trainer has nothing to do."""
        return self._waits_since is not None

    @property
    def groups_ready(self) -> int:
        return len(self.ready.get((self.iteration, self.step), ()))

    @property
    def groups_to_come(self) -> int:
        """Return how many groups of the iteration that is trained on have not arrived."""
        return self.work.prompts - self._arrived[self.iteration]

    def ended(self, request: Request) -> None:
        """The pool is through with a request."""
        episode = self._episodes[request.request_id]
        episode.turns.append(request)
        if (turn := len(episode.turns)) < len(episode.lengths):
            self.world.at(self.world.now + episode.pauses[turn - 1], partial(self._ask, episode))
            return
        iteration, group = episode.iteration, episode.group
        siblings = self._siblings.setdefault((iteration, group), [])
        siblings.append(episode)
        if len(siblings) == self.work.group_size:
            self._arrived[iteration] += 1
            for step, portion in self._portions(iteration, group, self._siblings.pop((iteration, group))):
                self.ready.setdefault((iteration, step), deque()).append(portion)
            self.train()

    def _portions(
        self, iteration: int, group: int, siblings: list[VirtualEpisode]
    ) -> Iterator[tuple[int, list[VirtualEpisode]]]:
        """Yield each step with what it trains on of a group; where nothing is dealt, all at once."""
        if self.work.order == "arrival":
            yield 0, siblings
            return
        if iteration not in self._dealt:
            self._dealt[iteration] = self.work.steps_of(iteration)
        steps = self._dealt[iteration][group]
        for step in sorted(set(steps)):
            yield step, [episode for episode in siblings if steps[episode.sibling] == step]

    def train(self) -> None:
        """Take the next group, if the trainer has nothing to do and may."""
        if self._waits_since is None or not self.groups_ready or self.open_window():
            return
        self.waiting_s += self.world.now - self._waits_since
        self._waits_since = None
        siblings = self.ready[self.iteration, self.step].popleft()
        lengths = [episode.chunks * self.world.chunk for episode in siblings]
        prompt = self.work.added_tokens(self.work.turns - 1)
        seconds = self.speed.seconds_for([(prompt + length, length) for length in lengths])
        self.trained_samples += len(siblings)
        is_last = self._is_last_of_step()
        if is_last:
            seconds += self.speed.update_s
        tokens = sum(lengths) + prompt * len(siblings)
        self.world.at(self.world.now + seconds, lambda: self._trained(siblings, tokens, is_last=is_last))

    def _is_last_of_step(self) -> bool:
        samples = self.work.prompts * self.work.group_size
        if self.trained_samples == samples:
            return True
        if self.work.order == "arrival":
            return self.work.ends_step(self.trained_samples // self.work.group_size)
        # As `Work.steps_of` cuts them: those before place n * samples / steps, rounded up.
        return self.trained_samples == -(-(self.step + 1) * samples // self.work.mini_batches)

    def _trained(self, siblings: list[VirtualEpisode], tokens: int, *, is_last: bool) -> None:
        self.trained_tokens += tokens
        self.step += is_last and self.work.order == "shuffled"
        requests = tuple(request.request_id for episode in siblings for request in episode.turns)
        for request_id in requests:
            del self._episodes[request_id]
        self.world.forget(requests)
        if self.trained_samples == self.work.prompts * self.work.group_size:
            self.world.at(self.world.now + self.speed.publish_s, self._published)
        else:
            self._waits_since = self.world.now
            self.train()

    def _published(self) -> None:
        self.ready = {key: portions for key, portions in self.ready.items() if key[0] != self.iteration}
        del self._arrived[self.iteration]
        self._dealt.pop(self.iteration, None)
        self.version += 1
        self.trained_samples = self.step = 0
        self._waits_since = self.world.now
        self.on_published()
        self.world.publish(self.version)
        self._submit()
        self.on_iteration()
        self.train()

    def _submit(self) -> None:
        """Every iteration that may begin now."""
        most = FOREVER_S if self.last_iteration is None else self.last_iteration
        while self.submitted <= self.version + self.max_staleness and self.submitted < most:
            self.submitted += 1
            oldest = max(0, self.submitted - 1 - self.max_staleness)
            lengths, pauses = self.work.lengths(self.submitted), self.work.pauses(self.submitted)
            chunks = [max(1, round(tokens / self.world.chunk)) for tokens in lengths]
            for index, start in enumerate(range(0, len(chunks), self.work.turns)):
                group, sibling = divmod(index, self.work.group_size)
                turns = slice(start, start + self.work.turns)
                self._ask(
                    VirtualEpisode(self.submitted, group, sibling, oldest, chunks[turns], pauses[turns])
                )

    def _ask(self, episode: VirtualEpisode) -> None:
        """Submit the next turn of an episode."""
        chunk, turn = self.world.chunk, len(episode.turns)
        length = episode.lengths[turn]
        group = f"{episode.iteration}/{episode.group}"
        request_id = RequestId("run", f"{group}/{episode.sibling}/{turn}")
        self._episodes[request_id] = episode
        order = Order(
            request_id,
            (0,) * max(1, self.work.added_tokens(turn) // chunk + episode.chunks),
            max(length, self.work.longest // chunk) + 1,
            {} if self.can_continue else RECOMPUTE,
            FOREVER_S,
            group=group,
            min_weight_version=episode.oldest,
        )
        self.world.submit(order, length)
