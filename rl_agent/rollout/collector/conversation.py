"""One episode's exchange with the engine, as tokens.

Text goes in as token ids, and so do images, one token each: the server says which tokens it made of the
context. What was sampled is never tokenised again, but by a server that takes images in messages alone. A
turn whose context does not begin with the one before, for the policy in `policy.limits` left something out,
is marked `context_reset`.

    observation ─► views, the most first ─► the first that fits ─► engine ─► Turn, with what was shown
                          └── summary: the engine first writes what stands for what is left out
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rl_agent.chat.context.window import ContextView, Round, first_whole, views
from rl_agent.chat.parse import Thought, parse_action
from rl_agent.chat.tool_calls import ParsedAction, Toolbox
from rl_agent.engine.wire import Sampling
from rl_agent.errors import PromptTooLong
from rl_agent.rollout.collector.policy import MAX_SEED, EpisodeDraws
from rl_agent.rollout.collector.prompts import Prompt, PromptBuilder
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Compaction, Generation, Observation, SeenContext

_SUMMARY_SEED = 500_009
"""Added to the seed of a summary, which must not share random numbers with the turn after it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to the engine and its response; `types.Step` names the fields."""

    prompt_token_ids: tuple[int, ...]
    generation: Generation
    action: str
    context_reset: bool
    seen: SeenContext
    parsed: ParsedAction
    """The response's actions; `action` is a part of it."""


class Conversation:
    """The context of one episode. A turn that raises leaves it as it was before."""

    def __init__(self, draws: EpisodeDraws, toolbox: Toolbox | None = None) -> None:
        self._draws = draws
        self._policy = policy = draws.policy
        self._task_id = draws.task_id
        self._read = toolbox.read if toolbox else _as_text
        self._tools = toolbox.schemas if toolbox else ()
        self._builder = PromptBuilder(
            policy.chat, policy.system_prompt, policy.image_tokens, draws.task_id, self._tools
        )
        self._view = ContextView()

    async def respond(self, observation: Observation) -> Turn:
        """Show an observation, draw a response.

        Raises PromptTooLong if even the least that can be shown does not fit, and what the engine's client
        raises.
        """
        builder, policy = self._builder, self._policy
        compactions, view = await self._compact(observation)
        prompt, token_ids, generation = await self._draw(
            view, observation, self._sampling(), self._draws.request_id(self._turn), self._longest_prompt()
        )
        policy.gate.sampled_tokens += len(generation.token_ids)
        opened = policy.chat.opened_thought(token_ids)
        parsed = await off_loop(len(generation.text), self._read, generation.text, opened)
        if generation.finish_reason == "length" and not parsed.is_call:
            parsed = ParsedAction("")  # what the token limit cut is not an answer
        new, is_reset = builder.added(prompt, token_ids)
        if policy.lengths is not None:
            policy.lengths.add(self._task_id, len(builder.rounds), len(generation.token_ids))
        done = Round(observation, generation.text, parsed.action, is_call=parsed.is_call)
        builder.add(prompt, token_ids, generation, done)
        self._view = prompt.view
        seen = SeenContext(
            policy=policy.limits.kind,
            images=prompt.images,
            whole_from=prompt.view.whole_from,
            as_lines=prompt.view.as_lines,
            compactions=compactions,
        )
        return Turn(tuple(new), generation, parsed.action, is_reset, seen, parsed)

    def note(self, *, changed: bool, invalid: bool) -> None:
        """Record what came of the last action; a later line about it says so."""
        rounds = self._builder.rounds
        rounds[-1] = replace(rounds[-1], changed=changed, invalid=invalid)

    async def _compact(self, observation: Observation) -> tuple[tuple[Compaction, ...], ContextView]:
        """Let the model summarise what would be left out; also returns what may be shown from now on."""
        limits, rounds, last = self._policy.limits, self._builder.rounds, self._view
        if limits.kind != "summary" or not rounds or not await self._must_leave_out(observation):
            return (), last
        steps = max(
            first_whole(limits, rounds, observation, last),
            len(rounds) - limits.keep_rounds,
            min(last.whole_from + 1, len(rounds)),
        )
        if steps == last.whole_from:
            return (), last
        sampling = self._sampling()
        sampling = replace(
            sampling,
            seed=(sampling.seed + _SUMMARY_SEED) % MAX_SEED,
            max_tokens=limits.summary_tokens,
            expected_tokens=0,
        )
        question, longest = Observation(limits.summary_prompt), limits.max_model_len
        prompt, token_ids, generation = await self._draw(
            last,
            question,
            sampling,
            f"{self._draws.request_id(self._turn)}:summary",
            None if longest is None else longest - limits.summary_tokens,
            is_of_user=True,
        )
        opened = self._policy.chat.opened_thought(token_ids)
        text = await off_loop(len(generation.text), parse_action, generation.text, opened)
        compaction = Compaction(steps, tuple(token_ids), prompt.images, generation)
        # Without a summary, for a model wrote none, the steps are shown as lines.
        return (compaction,), ContextView(steps, 0 if text else steps, text)

    async def _must_leave_out(self, observation: Observation) -> bool:
        limits, longest = self._policy.limits, self._longest_prompt()
        if first_whole(limits, self._builder.rounds, observation, self._view) > self._view.whole_from:
            return True
        if longest is None:
            return False
        try:  # with room for the request that asks for the summary
            await self._builder.fitting([self._view], observation, longest - limits.summary_tokens)
        except PromptTooLong:
            return True
        return False

    def _longest_prompt(self) -> int | None:
        """A first prompt cannot be shortened: it is sent if there is room for any response at all."""
        limits = self._policy.limits
        if self._builder.rounds or limits.max_model_len is None:
            return limits.max_prompt_tokens
        return limits.max_model_len - 1

    async def _draw(
        self,
        view: ContextView,
        observation: Observation,
        sampling: Sampling,
        request_id: str,
        longest: int | None,
        *,
        is_of_user: bool = False,
    ) -> tuple[Prompt, Sequence[int], Generation]:
        """Draw a response to the most that fits; also returns the tokens that the engine saw."""
        left: Sequence[ContextView] = views(self._policy.limits, self._builder.rounds, observation, view)
        while True:
            prompt, left = await self._builder.fitting(left, observation, longest, is_of_user=is_of_user)
            try:
                return await self._ask(prompt, sampling, request_id)
            except PromptTooLong:  # only the server knew how many tokens its images take
                if not left:
                    raise

    async def _ask(
        self, prompt: Prompt, sampling: Sampling, request_id: str
    ) -> tuple[Prompt, Sequence[int], Generation]:
        if not prompt.messages:
            return prompt, *await self._draws.response(prompt.token_ids, sampling, request_id, self._turn)
        policy = self._policy
        async with self._draws.place(self._turn) as queue_s:
            if prompt.token_ids and policy.engine.takes_images:
                token_ids, generation = await policy.engine.generate_with_images(
                    prompt.token_ids,
                    prompt.files,
                    self._within(prompt, sampling),
                    request_id=request_id,
                    decode=policy.chat.decode_after,
                )
            else:
                token_ids, generation = await policy.engine.generate_chat(
                    prompt.messages,
                    self._within(prompt, sampling),
                    request_id=request_id,
                    chat_template_kwargs=policy.chat_template_kwargs,
                    decode=policy.chat.decode_response,
                    tools=self._tools,
                )
            policy.image_tokens.learn(prompt.sizes, token_ids)
        return prompt, token_ids, replace(generation, queue_s=queue_s)

    def _within(self, prompt: Prompt, sampling: Sampling) -> Sampling:
        """Ask for no more tokens than there is room for: a server refuses that with images."""
        longest, length = self._policy.limits.max_model_len, prompt.length
        if longest is None or length is None:
            return sampling
        if length >= longest:
            raise PromptTooLong(f"{length} tokens fill the {longest}")
        return replace(sampling, max_tokens=min(sampling.max_tokens, longest - length))

    def _sampling(self) -> Sampling:
        return self._draws.sampling(self._turn)

    @property
    def _turn(self) -> int:
        return len(self._builder.rounds)


def _as_text(response: str, opened: Thought | None) -> ParsedAction:
    return ParsedAction(parse_action(response, opened))
