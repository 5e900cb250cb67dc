"""Lists, shows, checks and exports what a run has recorded."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl_agent.cli._numbers import finite, recorded_from_0, recorded_from_1
from rl_agent.cli._options import log_folder, verb_parser
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories import verify
from rl_agent.rollout.trajectories.browse import Filter, find, flat, readable_time, seen_in_words
from rl_agent.rollout.trajectories.line import to_json
from rl_agent.system import terminal
from rl_agent.system.files import replaceable
from rl_agent.system.flag_parser import FlagParser
from rl_agent.types import Split, Status, Step, Trajectory

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_T = TypeVar("_T")
WIDTH_OF_A_PIPE = 200
SUMMARY = "list, show, export and verify a run's trajectories"

EPILOG = """\
examples
  rl-agent trajectories list --log-path /home/user/exp1
  rl-agent trajectories list --log-path /home/user/exp1 --split test --iteration 1 --iteration 7
  rl-agent trajectories list --log-path /home/user/exp1 --status failed --limit 0
  rl-agent trajectories show --log-path /home/user/exp1 sum-17:0:2 --iteration 3
  rl-agent trajectories export --log-path /home/user/exp1 --min-reward 1 \\
      --format parquet --out good.parquet
  rl-agent trajectories verify --log-path /home/user/exp1

jsonl contains everything that was recorded, including token ids and logprobs; csv and parquet contain
one row per episode, for pandas. Unfinished iterations are included. Images are named by their paths.

verify reads everything, compares lines and images with their checksums and every file with its manifest, and
ends with 1 if something is damaged or missing, else with 0.
"""

CHECKED_COLUMNS = ("file", "iteration is", "expected", "found", "state")
MAX_NAMED = 50
"""Damaged lines that `verify` names."""
LEAST_WANTED = ("difficulty", "response_tokens", "steps", "status", "split", "iteration", "prompt", "answer")
"""Columns that a narrow terminal does without, the first ones first."""
COLUMNS = (
    "episode",
    "split",
    "iteration",
    "difficulty",
    "status",
    "reward",
    "steps",
    "response_tokens",
    "prompt",
    "answer",
    "last_response",
)
LONGEST = {"prompt": 40, "answer": 16, "last_response": 30}
"""Columns of text of which the end is shown, in so many characters: there a question and its answer are."""
SHORTEST = 12
"""Characters of such a column that a narrow terminal shows at least, or it does without."""


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    paths = RunPaths(log_folder(options.log_path))
    if not paths.log_path.is_dir():
        raise ConfigError(f"--log-path {paths.log_path}: is not a folder")
    if options.action == "verify":
        return _verify(paths, options)
    trajectories = find(paths, _filter(options))
    if options.action == "list":
        _list(trajectories, options.limit)
    elif options.action == "show":
        _show(trajectories, options.episode)
    else:
        _export(trajectories, options.format, options.out)
    return 0


def parser() -> argparse.ArgumentParser:
    place = FlagParser(add_help=False)
    place.add_argument("--log-path", type=Path, required=True, help="log path of the run")
    place.add_argument("--split", choices=("train", "test"), help="episodes of this task file only")
    place.add_argument(
        "--iteration",
        type=recorded_from_1,
        action="append",
        help="iteration of the run, from 1; may be repeated",
    )
    shared = FlagParser(add_help=False, parents=[place])
    which = shared.add_argument_group("which trajectories (all that match every option)")
    which.add_argument("--status", choices=[status.value for status in Status], help="how the episode ended")
    which.add_argument("--min-reward", type=finite, help="lowest reward")
    which.add_argument("--max-reward", type=finite, help="highest reward")
    which.add_argument("--difficulty", metavar="NAME", help="easy, medium or hard")
    which.add_argument("--task-id", metavar="ID", help="attempts at this task only")

    parser = verb_parser("trajectories", SUMMARY, EPILOG)
    actions = parser.add_subparsers(dest="action", required=True, metavar="list | show | export | verify")
    listing = actions.add_parser("list", parents=[shared], help="a table, one line per episode")
    listing.add_argument("--limit", type=recorded_from_0, default=50, metavar="N", help="0: all; default 50")
    showing = actions.add_parser("show", parents=[shared], help="one episode, turn by turn")
    showing.add_argument("episode", help="its key, TASK:GROUP:ATTEMPT, as the list shows it")
    exporting = actions.add_parser("export", parents=[shared], help="write a file for other programs")
    exporting.add_argument(
        "--format", choices=("jsonl", "csv", "parquet"), required=True, help="of the new file"
    )
    exporting.add_argument("--out", type=Path, required=True, help="the new file")
    verifying = actions.add_parser(
        "verify", parents=[place], help="check that everything is as it was written"
    )
    verifying.add_argument(
        "--accept-loss",
        action="store_true",
        help="from now on, finished iterations that are damaged hold what can be read of them",
    )
    return parser


def _filter(options: argparse.Namespace) -> Filter:
    return Filter(
        split=options.split,
        iterations=frozenset(options.iteration) if options.iteration else None,
        status=Status(options.status) if options.status else None,
        min_reward=options.min_reward,
        max_reward=options.max_reward,
        difficulty=options.difficulty,
        task_id=options.task_id,
    )


def _list(trajectories: Iterable[Trajectory], limit: int) -> None:
    rows: list[list[str]] = []
    count, rewards = 0, []
    for trajectory in trajectories:
        count += 1
        if trajectory.reward is not None:
            rewards.append(trajectory.reward)
        if limit == 0 or count <= limit:
            row = flat(trajectory)
            rows.append([_list_cell(row[column], LONGEST.get(column)) for column in COLUMNS])
    console = _console()
    table, hidden = _table_that_fits(rows, console.width)
    console.print(table, crop=False, width=max(console.width, int(console.measure(table).minimum)))
    mean = f", mean reward {sum(rewards) / len(rewards):.3f} of {len(rewards)}" if rewards else ""
    left_out = f"; {count - limit} more, --limit 0 lists all" if limit and count > limit else ""
    console.print(f"{count} episodes{mean}{left_out}", highlight=False, soft_wrap=True)
    if hidden:
        names = ", ".join(hidden)
        console.print(f"this terminal is too narrow for {names}: `show KEY` shows them", highlight=False)


def _list_cell(value: object, longest: int | None) -> str:
    text = _plain_cell(value)
    if longest is None:
        return terminal.one_line(text)
    return _end(terminal.one_line(" ".join(text[-10 * longest :].split())), longest)


def _end(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"…{text[1 - longest :]}"


def _table_that_fits(rows: list[list[str]], width: int) -> tuple["Table", list[str]]:
    """Return the table, whose keys are always whole, and the columns that it has no room for."""
    from rich.markup import escape
    from rich.table import Table

    widths = {
        column: max([len(column), *(len(row[index]) for row in rows)]) for index, column in enumerate(COLUMNS)
    }
    hidden = []
    for column in LEAST_WANTED:
        spare = width - sum(widths.values()) - 2 * len(widths)
        if spare < 0 and column in LONGEST and widths[column] + spare >= SHORTEST:
            widths[column] += spare
            spare = 0
        if spare >= 0:
            break
        del widths[column]
        hidden.append(column)
    table = Table(box=None, header_style="bold")
    for column in widths:
        table.add_column(column, no_wrap=True, min_width=widths[column])
    shown = [(index, widths[column]) for index, column in enumerate(COLUMNS) if column in widths]
    for row in rows:
        table.add_row(*(escape(_end(row[index], size)) for index, size in shown))
    return table, hidden


def _console() -> "Console":
    return terminal.console(width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE)


def _verify(paths: RunPaths, options: argparse.Namespace) -> int:
    from rich.table import Table

    splits: tuple[Split, ...] = (options.split,) if options.split else ("train", "test")
    table = Table(*CHECKED_COLUMNS, box=None, header_style="bold")
    damage: list[str] = []
    damaged: set[tuple[Split, int]] = set()
    for split in splits:
        iterations = {*paths.iterations(split), *paths.iterations(split, unfinished=True)}
        for iteration in sorted(iterations & set(options.iteration or iterations)):
            for check in verify.check(paths, split, iteration):
                table.add_row(*_check_row(check))
                if not check.is_whole:
                    gone = [f"{path}: is gone, or is not what was seen" for path in check.lost_images]
                    damage += [text for text in (check.problem, *check.damaged, *gone) if text]
                    damaged.add((split, iteration))
    console = _console()
    console.print(table)
    for text in damage[:MAX_NAMED]:
        print(text)
    if len(damage) > MAX_NAMED:
        print(f"and {len(damage) - MAX_NAMED} more")
    if not options.accept_loss:
        return 1 if damaged else 0
    for split, iteration in sorted(damaged):
        if paths.is_finished(split, iteration):
            verify.accept(paths, split, iteration)
            print(f"{paths.manifest(split, iteration)}: rewritten; all episodes that it counts exist")
        else:
            print(f"{split} iteration {iteration}: is not finished; --resume runs damaged episodes again")
    return 0


def _check_row(check: verify.FileCheck) -> list[str]:
    lost = f"{check.missing} missing" if check.missing else ""
    damaged = f"{len(check.damaged)} damaged" if check.damaged else ""
    images = f"{len(check.lost_images)} images lost" if check.lost_images else ""
    state = ", ".join(part for part in (lost, damaged, images, "see below" if check.problem else "") if part)
    if check.is_whole:
        state = f"ok ({damaged}, run again or accepted)" if damaged else "ok"
    expected = "-" if check.expected is None else f"{check.expected:,}"
    finished = "finished" if check.is_finished else "growing"
    return [_cell(check.file.name), finished, expected, f"{check.episodes:,}", state]


def _cell(value: object) -> str:
    from rich.markup import escape

    return escape(_plain_cell(value))


def _plain_cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _show(trajectories: Iterable[Trajectory], episode: str) -> None:
    matching = [entry for entry in trajectories if episode in (key := str(entry.key), terminal.one_line(key))]
    if not matching:
        raise ConfigError(f"episode {episode}: not recorded here; `trajectories list` shows what is")
    for place, trajectory in enumerate(matching, start=1):
        if len(matching) > 1:
            print(f"=== {place} of {len(matching)}: {_where(trajectory)}")
        row = flat(trajectory)
        row["started_at"] = readable_time(trajectory.started_at)
        row["duration_s"] = f"{trajectory.duration_s:.1f}"
        wide = ("prompt", "last_response", "images")
        shown = {name: _plain(value) for name, value in row.items() if name not in wide}
        print("\n".join(f"{name:<20}{terminal.indented(text)}" for name, text in shown.items()))
        if trajectory.system_prompt:
            print(f"\n--- system\n{trajectory.system_prompt}")
        for number, step in enumerate(trajectory.steps):
            _show_step(number, step)
        if trajectory.last_observation:
            print("\n--- after the last action (the model did not see it)")
            print(trajectory.last_observation)
        _show_verdict(trajectory.reward_detail)
        print()
    if len(matching) > 1:
        newest = matching[-1]
        print(
            f"{episode} was tried {len(matching)} times; to see one of them:"
            f" --split {newest.split} --iteration {newest.iteration}",
            file=sys.stderr,
        )


def _where(trajectory: Trajectory) -> str:
    return f"{trajectory.split} iteration {trajectory.iteration}"


def _show_step(number: int, step: Step) -> None:
    generation = step.generation
    images = "".join(f"\n[image {path}]" for path in step.observation.images)
    for compaction in step.seen.compactions:
        print(f"\n--- summary of the steps before {compaction.steps}\n{compaction.generation.text}")
    print(f"\n--- step {number}: observation{images}\n{step.observation.text}")
    if context := seen_in_words(step):
        print(f"--- context {context}")
    print(f"--- response ({len(generation.token_ids)} tokens, {generation.finish_reason})")
    print(generation.text)
    unchanged = "" if step.changed else ", nothing changed"
    print(f"--- action {step.action!r}: reward {step.reward:g}{unchanged}")


def _show_verdict(detail: Mapping[str, Any]) -> None:
    """Show what the judge said, criterion by criterion; a detail `verdict` may be an environment's own."""
    if "verdict" not in detail:
        return
    images = _list_of(detail.get("images"), str)
    seen = f", by {', '.join(images)}" if images else ""
    summary = f"{detail.get('judge_model', '')}: {detail['verdict']}{seen}"
    print(f"\n--- judge {terminal.one_line(summary)}")
    print(str(detail.get("reason", "")))
    for fact in _list_of(detail.get("criteria"), dict):
        verdict, weight = fact.get("verdict", ""), fact.get("weight", 1)
        weighed = "" if weight == 1 else f" (weight {weight:g})" if isinstance(weight, int | float) else ""
        print(f"{verdict!s:<5}{fact.get('criterion', '')}{weighed}\n     {fact.get('reason', '')}")


def _list_of(values: object, kind: type[_T]) -> list[_T]:
    return [value for value in values if isinstance(value, kind)] if isinstance(values, list | tuple) else []


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


def _export(trajectories: Iterable[Trajectory], form: str, out: Path) -> None:
    """Write beside the target and rename: a reader never sees half."""
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: its folder does not exist")
    target = replaceable(out, "--out")
    temporary = target.with_name(target.name + ".tmp")
    try:
        count = _write(trajectories, form, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{count} episodes to {out}")


def _write(trajectories: Iterable[Trajectory], form: str, out: Path) -> int:
    if form == "jsonl":
        count = 0
        with out.open("wb") as file:
            for trajectory in trajectories:
                file.write(to_json(trajectory) + b"\n")
                count += 1
        return count
    import pandas as pd

    frame = pd.DataFrame([flat(trajectory) for trajectory in trajectories])
    if form == "csv":
        frame.to_csv(out, index=False)
    else:
        frame.to_parquet(out, index=False)
    return len(frame)
