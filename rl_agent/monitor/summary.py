"""Says in a few lines what an iteration has reached: numbers, two responses, and what is suspicious."""

from collections.abc import Iterable
from typing import Any

from rl_agent.monitor.bounds import before, warnings
from rl_agent.monitor.progress import LINE_CHARACTERS, cut, duration
from rl_agent.monitor.report import TIMED, Row, TimelineSpan, leading
from rl_agent.system.terminal import one_line
from rl_agent.types import Phase, Split

_REWARD = {
    f"{split}/{name}": word
    for split in ("train", "test")
    for name, word in (("success_rate", ""), ("reward_mean", " reward"))
}
"""The word after the name of a split in the line of an iteration, by the metric that leads."""


def iteration_line(rows: dict[int, Row], iteration: int, spans: Iterable[TimelineSpan]) -> str:
    """Describe what is known of an iteration; empty before its first phase has ended."""
    row, parts = rows.get(iteration, {}), []
    version = f" v{version}" if (version := row.get("test/weight_version")) is not None else ""
    name = leading(rows, "test")
    if (value := row.get(name)) is not None:
        earlier = before(rows, iteration, name)
        gain = "" if earlier is None else f" ({value - earlier:+.3f})"
        parts.append(f"test{version}{_REWARD[name]} {value:.3f}{gain}")
    if (value := row.get(name := leading(rows, "train"))) is not None:
        parts.append(f"train{_REWARD[name]} {value:.3f}")
    split: Split = "train" if "train/episodes" in row else "test"
    if (value := row.get(f"{split}/reward_mean")) is not None and not _REWARD[leading(rows, split)]:
        parts.append(f"reward {value:.3f}")
    if f"{split}/episodes" in row:
        parts.append(f"{row[f'{split}/episodes']:,.0f} episodes")
    if "update/loss" in row:
        parts.append(f"loss {row['update/loss']:.3f}")
    if not parts:
        return ""
    seconds = sum(s.end - s.start for s in spans if s.iteration == iteration and s.name in TIMED)
    short = f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    parts.append(short if seconds < 100 else duration(seconds))
    return cut("  ".join([f"iteration {iteration}", *parts]))


def phase_lines(
    rows: dict[int, Row], iteration: int, phase: Phase, spans: Iterable[TimelineSpan]
) -> list[str]:
    """Return what a person reads once a phase of an iteration has ended."""
    lines = [iteration_line(rows, iteration, spans)]
    if phase == "evaluate":
        lines += example_lines(rows.get(iteration, {}))
    lines += [f"warning: {words}" for words in warnings(rows, iteration, phase, is_repeated=False)]
    return [line for line in lines if line]


def example_lines(row: Row) -> list[str]:
    """Describe a rewarded and a failed response of an evaluation, a line each, with the expected answer."""
    examples = [example for example in row.get("test/examples", ()) if isinstance(example, dict)]
    return [_example_line(example) for example in examples]


def _example_line(example: dict[str, Any]) -> str:
    head = f"  {'rewarded' if example['is_success'] else 'failed':<8} {example['reward']:<5.3g}"
    head += f" {_end(example, 'response', 36)}"
    head += f"  expected {_end(example, 'expected', 20)}" if example["expected"] else ""
    return f"{head}  to {_end(example, 'prompt', max(LINE_CHARACTERS - len(head) - 5, 12))}"


def _end(example: dict[str, Any], name: str, length: int) -> str:
    """Return the end of a text in quotes, where an answer is."""
    text = one_line(" ".join(str(example.get(name, "")).split()))
    return f'"{text}"' if len(text) <= length - 2 else f'"…{text[3 - length :]}"'
