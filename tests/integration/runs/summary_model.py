"""A tiny model taught one episode by heart: to count, to summarise what it did, and to judge that.

The episode is rehearsed with an engine that says what is right, so that the lessons are the very prompts that
a run sends. The judge's are learned with many fences, which are random.
"""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.window import ContextLimits
from rl_agent.judge.judge import read_prompt
from rl_agent.judge.judge_prompt import fenced, verdict_messages
from rl_agent.judge.rubric import criteria_of
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import Policy
from rl_agent.types import EpisodeKey, EpisodeSpec, Generation, Task, Trajectory
from tests.integration.rollout.environments import Counting
from tests.integration.runs.taught_model import Lesson, teach
from tests.unit.rollout.episodes import SAMPLING, FakeEngine, make_setup

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from tiny_tokenizer import CHAT_TEMPLATE, TURN_END, save_tokenizer, train_tokenizer

MAX_LENGTH = 2048
SUMMARY_PROMPT = "Summarise what you have done."
SUMMARY = "I have counted without a mistake."
VERDICTS = {
    "The agent counted to the end.": ("it said every number", "PASS"),
    "The agent said please.": ("no response has that word", "FAIL"),
}
TASK = Task(
    "count",
    "Count with me.",
    "counting",
    "easy",
    extra={"rubrics": [{"text": text, "weight": n} for n, text in enumerate(VERDICTS, start=1)]},
)


def verdict(criterion: str) -> str:
    reason, word = VERDICTS[criterion]
    return json.dumps({"reason": reason, "verdict": word})


class Rehearsal(FakeEngine):
    """Says what is right, and keeps what it was asked."""

    def __init__(self, chat: ChatTokenizer) -> None:
        super().__init__()
        self.lessons: list[Lesson] = []
        self._chat = chat

    async def generate(self, prompt_token_ids, sampling, *, request_id, decode):
        prompt = self._chat.decode(prompt_token_ids).rpartition("<|im_start|>user\n")[2]
        text = SUMMARY if prompt.startswith(SUMMARY_PROMPT) else Counting.right_answer(prompt)
        response = [*self._chat._encode(text), *self._chat._encode(TURN_END)]
        self.lessons.append((list(prompt_token_ids), response))
        return Generation(tuple(response), (-0.1,) * len(response), text, "stop", 1, 1)


async def rehearse(chat: ChatTokenizer, limits: ContextLimits) -> tuple[Trajectory, list[Lesson]]:
    """Return an episode in which everything is right, and what the model has to say in it."""
    engine = Rehearsal(chat)
    policy = Policy(engine, EngineGate(1), chat, SAMPLING, limits=limits)
    spec = EpisodeSpec(EpisodeKey(TASK.task_id, 0, 0), TASK, max_steps=Counting.LENGTH, seed=0)
    return await Episode(spec, make_setup(Counting(), policy=policy)).run(), engine.lessons


def judge_lessons(chat: ChatTokenizer, trajectory: Trajectory, draw: random.Random) -> list[Lesson]:
    """Return the judge's questions about an episode, with a fence of their own, and its answers."""
    prompt = read_prompt(Path("verdict.md"))
    lessons = []
    for criterion in criteria_of(TASK):
        question = fenced(
            verdict_messages(prompt, trajectory, criterion, {}), f"{draw.getrandbits(128):032x}"
        )
        token_ids = chat.encode_messages(question)
        assert token_ids is not None
        response = [*chat._encode(verdict(criterion.text)), *chat._encode(TURN_END)]
        lessons.append((token_ids, response))
    return lessons


def save_chat(folder: Path) -> ChatTokenizer:
    """Write the tokenizer, and read it as a run does."""
    folder.mkdir(parents=True)
    texts = [SUMMARY_PROMPT, SUMMARY, *map(verdict, VERDICTS), *VERDICTS, *Counting.texts()]
    save_tokenizer(
        train_tokenizer([*texts, read_prompt(Path("verdict.md")), CHAT_TEMPLATE]),
        folder,
        max_length=MAX_LENGTH,
    )
    return ChatTokenizer.load(str(folder), {})


def teach_episode(
    folder: Path, chat: ChatTokenizer, rehearsed: Trajectory, lessons: Sequence[Lesson]
) -> None:
    """Teach the answers of an episode, and those of its judge."""
    (end,) = chat._encode(TURN_END)
    draw = random.Random(0)
    teach(
        folder,
        lambda: [*lessons, *judge_lessons(chat, rehearsed, draw)],
        vocab_size=chat._tokenizer.get_vocab_size(),
        end=end,
        max_length=MAX_LENGTH,
        good_enough=0.02,
        most_rounds=400,
    )
