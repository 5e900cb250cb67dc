"""The chats of one agent's program with the model, as sequences of tokens.

A program sends whole conversations, and may have several. A question that continues an answer gets the tokens
of that answer as they were sampled, and what the chat template puts after them; nothing is rendered again.

    question ─► the last answer among its messages that was given here ─► its tokens + the messages after it
                  │ not continued yet: the same sequence goes on
                  │ continued already: `branch`, or `edited` where another answer stands in place of the next
                  └ none: a sequence of its own, `new`, or `edited` where its first answer was replaced

Each answer is a step, in exactly one sequence; the sequences of an episode are recorded one after another, in
the order of their first questions. A step that begins one holds its whole context (`context_reset`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.client_messages import digests_of, mark_after, marks_of, message_of, shown
from rl_agent.chat.reply import Reply, read_reply
from rl_agent.chat.tool_calls import action_of
from rl_agent.chat.tool_formats import ToolFormat, UnreadableCall
from rl_agent.chat.tool_template import tool_format_of
from rl_agent.engine.packed import PromptImage
from rl_agent.env.agent.session import LimitReached, ModelAnswer, Question, QuestionRefused
from rl_agent.errors import ConfigError, EngineError, EnvironmentRefusal, PromptTooLong, RolloutError
from rl_agent.rollout.collector.policy import EpisodeDraws
from rl_agent.rollout.trajectories.images import keep_image
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Generation, Observation, SeenContext, SequenceBegin, Step, StepResult


@lru_cache(maxsize=2)
def _tool_format(chat: ChatTokenizer) -> ToolFormat:
    return tool_format_of(chat, "tools")


@dataclass(slots=True)
class _Given:
    """An answer that was given, and the tokens since the answer before it in its conversation."""

    sequence: "_Sequence"
    before: "_Given | None"
    prompt: Sequence[int]
    seen: Sequence[int]
    """The prompt as the model saw it, with several tokens for an image."""
    images: Sequence[PromptImage]
    response: Sequence[int]
    is_continued: bool = False

    def chain(self) -> list["_Given"]:
        """Return the answers of its conversation up to it."""
        chain: list[_Given] = [self]
        while (before := chain[-1].before) is not None:
            chain.append(before)
        return chain[::-1]


@dataclass(slots=True)
class _Sequence:
    number: int
    """The number of its first question."""
    begins: SequenceBegin = "new"
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a question among the answers so far."""

    given: _Given | None
    at: int
    """The number of messages up to that answer."""
    marks: Sequence[bytes]
    begins: SequenceBegin
    """The reason why it begins a sequence, if it does."""
    new: list[int]
    """The tokens after that answer, one for each image."""
    images: list[PromptImage]
    """The images after that answer."""

    def context(self) -> tuple[list[int], list[int], list[PromptImage]]:
        """Return the whole prompt, what the model has seen of it, and its images."""
        chain = self.given.chain() if self.given is not None else []
        sent = [token for given in chain for token in (*given.prompt, *given.response)]
        seen = [token for given in chain for token in (*given.seen, *given.response)]
        return [*sent, *self.new], seen, [*(image for given in chain for image in given.images), *self.images]


class AgentChats:
    """Answers an agent's program in one attempt at an episode, and keeps the steps; its `AgentSession`."""

    def __init__(
        self,
        draws: EpisodeDraws,
        *,
        model: str,
        max_steps: int,
        idle_s: float,
        images: Path | None = None,
        log: Callable[[str], object] = lambda text: None,
    ) -> None:
        """`idle_s`: the longest time in which nothing is asked; `images`: the folder for images.

        Raises EnvironmentRefusal if the model's server gives no tokens.
        """
        chat = draws.policy.chat
        if not isinstance(chat, ChatTokenizer):
            raise EnvironmentRefusal("the chats of an agent's program need a server that answers with tokens")
        self._chat = chat
        self.model = model
        self.error: BaseException | None = None
        """The first error that ends the episode."""
        self.has_reached_limit = False
        """A question was refused for a limit of the episode."""
        self.is_cut = False
        """The newest answer was cut by the limit of its tokens."""
        self._draws = draws
        self._max_steps = max_steps
        self._idle_s = idle_s
        self._folder = images
        self._images: dict[str, PromptImage] = {}
        """Images that were shown, by the digests of the files that were sent."""
        self._write = log
        self._limit: asyncio.Timeout | None = None
        self._asked = 0
        self._open = 0
        self._given: dict[bytes, _Given] = {}
        """The newest answer of each conversation up to it, by the conversation's digest."""
        self._questions: set[bytes] = set()
        """Digests of the conversations that were answered."""
        self._sequences: list[_Sequence] = []

    @property
    def steps(self) -> list[Step]:
        """The steps so far, sequence by sequence."""
        first, *others = sorted(self._sequences, key=lambda sequence: sequence.number) or [_Sequence(0)]
        steps = list(first.steps)
        for sequence in others:
            begin = replace(sequence.steps[0], context_reset=True, begins=sequence.begins)
            steps += [begin, *sequence.steps[1:]]
        return steps

    def watch(self, limit: asyncio.Timeout) -> None:
        """Let this deadline stand still while a question is open."""
        self._limit = limit

    async def until_end(self, program: Awaitable[StepResult]) -> StepResult:
        """Return how a program ended; one that a limit of the episode ended has no reward.

        Raises the first error of a question, else what the program raises.
        """
        try:
            return await program
        except (RolloutError, TimeoutError):
            if self.error is not None:
                raise self.error from None
            if not self.has_reached_limit:
                raise
            return StepResult(Observation("a limit of the episode ended it"), truncated=True)
        finally:
            self._limit = None

    def log(self, text: str) -> None:
        self._write(text)

    async def ask(self, question: Question) -> ModelAnswer:
        """Draw the response to a question. Raises QuestionRefused; other errors end the episode."""
        with self.paused():
            try:
                return await self._answer(question)
            except (QuestionRefused, asyncio.CancelledError):
                raise
            except Exception as error:
                self.error = self.error or error
                self._reschedule(0.0)
                raise

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the deadline stand still while the block runs."""
        self._open += 1
        self._reschedule(None)
        try:
            yield
        finally:
            self._open -= 1
            if not self._open and self.error is None:
                self._reschedule(asyncio.get_running_loop().time() + self._idle_s)

    def _reschedule(self, when: float | None) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(when)

    async def _answer(self, question: Question) -> ModelAnswer:
        number, draws = self._asked, self._draws
        if number >= self._max_steps:
            self.has_reached_limit = True
            raise LimitReached(
                f"the episode's {self._max_steps} steps are taken (max_steps of its difficulty)"
            )
        self._asked += 1
        size = sum(len(message["content"]) for message in question.messages)
        try:
            await self._keep(question)
            place, written_as = await off_loop(size, self._find, question)
        except ConfigError as error:
            raise QuestionRefused(str(error)) from error
        prompt, before, images = place.context()
        image_token = draws.policy.image_tokens.image_token
        if images and image_token is not None and prompt.count(image_token) != len(images):
            raise RolloutError("the model wrote the token that stands for an image, so none can be placed")
        sampling = replace(draws.sampling(number), stop=question.stop)
        if question.max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, question.max_tokens))
        try:
            seen, generation = await draws.response(
                prompt, sampling, draws.request_id(number), number, images=images
            )
        except PromptTooLong as error:
            self.has_reached_limit = True
            raise LimitReached(f"this model's maximum context length is reached: {error}") from error
        size = len(generation.text)
        schemas = {schema["function"]["name"]: schema for schema in question.tools}
        opened = self._chat.opened_thought(prompt)
        reply = await off_loop(size, read_reply, generation.text, opened, written_as, schemas)
        if list(seen[: len(before)]) != before:
            raise EngineError("the server made other tokens of the same images")
        self._record(number, question, place, (seen, len(before), images), generation, reply)
        finish = "tool_calls" if reply.calls else generation.finish_reason
        return ModelAnswer(reply, finish, len(seen), len(generation.token_ids))

    async def _keep(self, question: Question) -> None:
        """Keep the images of a question that are new. Raises QuestionRefused."""
        if not question.images:
            return
        if self._folder is None or not self._draws.policy.engine.takes_images or question.stop:
            raise QuestionRefused(
                "images: they need vLLM as run.sh or join_pool.sh start it, a folder for files, and no `stop`"
            )
        for digest, content in question.images.items():
            if digest in self._images:
                continue
            try:
                path = await asyncio.to_thread(keep_image, content, self._folder, "an image of a message")
            except EnvironmentRefusal as error:
                raise QuestionRefused(str(error)) from error
            self._images[digest] = PromptImage(path.stem, path)

    def _find(self, question: Question) -> tuple[_Place, ToolFormat | None]:
        """Find the last answer that messages continue. Raises ConfigError if the template refuses them."""
        written_as = _tool_format(self._chat) if question.tools and question.reads_calls else None
        marks, messages = marks_of(question.tools, question.messages), question.messages
        at = next((at for at in range(len(messages), 0, -1) if marks[at] in self._given), 0)
        rest = range(at, len(messages))
        # A conversation that was answered, followed by another answer than the one that was given.
        is_edited = any(marks[n] in self._questions and messages[n]["role"] == "assistant" for n in rest)
        begins: SequenceBegin = "edited" if is_edited else "branch" if at else "new"
        images = [self._images[digest] for digest in digests_of(messages[at:])]
        if not at:
            new = self._chat.start_with(messages, question.tools)
            return _Place(None, 0, marks, begins, new, images), written_as
        given = self._given[marks[at]]
        new = self._chat.extend_with(given.response, messages[at:])
        return _Place(given, at, marks, begins, new, images), written_as

    def _record(
        self,
        number: int,
        question: Question,
        place: _Place,
        context: tuple[Sequence[int], int, Sequence[PromptImage]],
        generation: Generation,
        reply: Reply,
    ) -> None:
        """Add a step to the sequence that its question continues, or begin one.

        `context`: the prompt as the model saw it, how many of its tokens are not new, and its images.
        """
        seen, old, images = context
        policy, given = self._draws.policy, place.given
        policy.gate.sampled_tokens += len(generation.token_ids)
        if policy.lengths is not None:
            policy.lengths.add(self._draws.task_id, number, len(generation.token_ids))
        if given is not None and not given.is_continued:
            given.is_continued = True
            sequence, new = given.sequence, seen[old:]
        else:
            sequence, new = _Sequence(number, place.begins), seen
            self._sequences.append(sequence)
        step = Step(
            observation=Observation(
                _observed(question, place), tuple(str(image.path) for image in place.images)
            ),
            prompt_token_ids=tuple(new),
            generation=generation,
            action=_action(reply),
            reward=0.0,
            changed=True,
            seen=SeenContext(policy=policy.limits.kind, images=tuple(image.digest for image in images)),
        )
        sequence.steps.append(step)
        self.is_cut = generation.finish_reason == "length"
        self._questions.add(place.marks[-1])
        answered = mark_after(place.marks[-1], message_of(reply.content, reply.calls))
        self._given[answered] = _Given(
            sequence, given, place.new, seen[old:], place.images, generation.token_ids
        )


def _observed(question: Question, place: _Place) -> str:
    """Return the messages after the answer that a question continues; before the first also the tools."""
    text = shown(question.messages[place.at :])
    if place.given is not None or not question.tools:
        return text
    return f"[tools] {', '.join(schema['function']['name'] for schema in question.tools)}\n\n{text}"


def _action(reply: Reply) -> str:
    """Return what a response does: its calls, a line each, or its text."""
    try:
        return "\n".join(map(action_of, reply.calls)) or reply.content
    except UnreadableCall:  # half a character
        return reply.content
