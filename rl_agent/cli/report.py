"""The verb `report` shows what a run has reached so far: tables on stdout, curves as a PNG."""

import os
import shlex
import sys
from pathlib import Path

from rl_agent.cli._numbers import recorded_from_1
from rl_agent.cli._options import add_log_path, log_folder, verb_parser
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.system.files import replaceable

SUMMARY = "reward per iteration as a table, every curve as a PNG, and where the time went"
EXAMPLE = """example:
  rl-agent report --log-path /home/user/exp1 --png curves.png
"""


def main(argv: list[str]) -> int:
    parser = verb_parser("report", SUMMARY, EXAMPLE)
    add_log_path(parser)
    parser.add_argument("--png", type=Path, help="file for the curves (default: LOG_PATH/reward.png)")
    parser.add_argument("--quiet", action="store_true", help="draw the curves, print nothing")
    parser.add_argument(
        "--iteration", type=recorded_from_1, help="show what this iteration has reached alone"
    )
    parser.add_argument(
        "--phase",
        choices=("rollout", "evaluate", "update"),
        default="evaluate",
        help="the phase of --iteration that has just ended (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)

    from rl_agent.monitor import bounds, curves, report, summary
    from rl_agent.system.terminal import console as terminal_console

    paths = RunPaths(log_folder(arguments.log_path))
    rows = report.reward_rows(paths)
    if arguments.iteration is not None:
        spans = report.read_timeline(paths.timeline)
        print("\n".join(summary.phase_lines(rows, arguments.iteration, arguments.phase, spans)))
        return 0
    if not rows:
        raise ConfigError(
            f"--log-path {paths.log_path}: no metrics.jsonl with an iteration; run a loop first"
        )
    png = Path(os.path.abspath(arguments.png or paths.curves))  # noqa: PTH100
    if arguments.png is not None:
        png = replaceable(png, "--png")
    if arguments.quiet:
        curves.draw(paths.metrics, png, title=paths.log_path.name)
        return 0
    console = terminal_console()
    console.print(report.reward_table(rows))
    if (attempts := report.attempts_table(rows)) is not None:
        console.print(attempts)
    if spans := report.read_timeline(paths.timeline):
        console.print(report.timeline_table(spans))
    account = f"episodes: {report.count_episodes(rows)}"
    for line in [account, *report.failure_lines(rows), *bounds.newest_warnings(rows)]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    # The last, for the folder may be one that this user can only read.
    is_drawn = curves.draw(paths.metrics, png, title=paths.log_path.name)
    evaluated = max((n for n, row in rows.items() if "test/episodes" in row), default=None)
    for line in _ways_on(paths, str(png) if is_drawn else "nothing to draw yet", evaluated):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return 0


def _ways_on(paths: RunPaths, curves: str, evaluated: int | None) -> list[str]:
    """Return where the results are, and commands that show more of them, of the newest evaluation first."""
    verb, place = f"{sys.executable} -m rl_agent.cli", f"--log-path {shlex.quote(str(paths.log_path))}"
    model = [f"model:  {paths.model_link} ({paths.model_link.resolve().name})"]
    newest = "" if evaluated is None else f" --split test --iteration {evaluated}"
    return [
        f"curves: {curves}",
        *(model if paths.model_link.exists() else []),
        f"page:   {verb} page {place}",
        f"next:   {verb} trajectories list {place}{newest} --limit 5",
    ]
