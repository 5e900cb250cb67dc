"""The verb `what-if` simulates what a set of machines would do and cost, before any of it is rented."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_agent.cli._options import verb_parser
from rl_agent.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from rl_agent.simulation.config import WhatIfConfig
    from rl_agent.simulation.scenario import Outcome

SUMMARY = "simulate a pool of rented machines and a streaming trainer: throughput, cost, lost work"
EXAMPLE = """examples:
  rl-agent what-if
  rl-agent what-if --trace trace.csv model=8b engine_price=4.10 trainer_price=60
  rl-agent what-if --setups static,elastic model=Qwen3-4B/config.json engine_gpus=1
  rl-agent what-if --json machines=4 up_hours=1 hours=6 seed=3

The simulation makes the pool's decisions in virtual time; it starts nothing and rents nothing. A trace is the
CSV of scripts/emulate_spot.sh: `time_s,change,how`, as in `600,+1` or `1200,-1,notice`. Without one, a trace
is sampled.
The keys, their defaults and meanings: configs/simulation/what_if.yaml, docs/reference/configuration.md.
"""
WIDE = 142
QUIET_S = 2.0
REPORT_EVERY_S = 5.0
OnProgress = Callable[[float], None]


def main(argv: list[str]) -> int:
    from rl_agent.simulation.config import read_config, scenario_of, trace_of
    from rl_agent.simulation.scenario import SETUPS, simulate
    from rl_agent.simulation.spot import read_trace_file
    from rl_agent.simulation.work import trace_text

    parser = verb_parser("what-if", SUMMARY, EXAMPLE)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="overrides of the defaults")
    parser.add_argument(
        "--trace", type=Path, metavar="CSV", help="trace of machines that come and go; default: sampled"
    )
    parser.add_argument(
        "--write-trace", type=Path, metavar="CSV", help="write the simulated trace to this file"
    )
    parser.add_argument(
        "--setups",
        default=",".join(SETUPS),
        metavar="NAME,…",
        help="setups to simulate (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options = parser.parse_intermixed_args(argv)

    setups = options.setups.split(",")
    for setup in setups:
        if setup not in SETUPS:
            raise UsageError(f"--setups {setup}: expected some of {', '.join(SETUPS)}")
    config = read_config(options.words)
    trace = trace_of(config) if options.trace is None else read_trace_file(options.trace)
    scenario = scenario_of(config, trace, str(options.trace or "drawn trace"))
    if options.write_trace is not None:
        options.write_trace.write_text(trace_text(trace), encoding="utf-8")
    outcomes: list[Outcome] = []
    for setup in setups:
        with _progress(setup) as on_progress:
            outcome = simulate(scenario, setup, on_progress)
        if outcome is None:
            hours = scenario.until_s / 3600
            raise UsageError(f"{setup}: not one iteration ends in {hours:g} h; simulate more hours=")
        outcomes.append(outcome)
    if options.json:
        print(
            json.dumps(
                {"config": config.model_dump(mode="json"), "setups": [asdict(row) for row in outcomes]}
            )
        )
    else:
        _show(config, scenario.until_s, outcomes)
    return 0


@contextmanager
def _progress(setup: str) -> Iterator[OnProgress]:
    """Says how far it is, once it takes longer than a moment."""
    began = time.monotonic()
    if sys.stderr.isatty():
        from rich.progress import Progress

        from rl_agent.system.terminal import console

        with Progress(console=console(stderr=True), transient=True) as bar:
            task = bar.add_task(setup, total=1.0, visible=False)
            yield lambda share: bar.update(task, completed=share, visible=time.monotonic() - began > QUIET_S)
        return
    reported_at = began - REPORT_EVERY_S + QUIET_S

    def report(share: float) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= REPORT_EVERY_S:
            reported_at = time.monotonic()
            print(f"{setup}: {share:.0%}", file=sys.stderr, flush=True)

    yield report


def _show(config: "WhatIfConfig", until_s: float, outcomes: "list[Outcome]") -> None:
    from rl_agent.system.terminal import console

    shown = console()
    shown.print(
        f"{config.model}, {config.trainer_gpus} GPUs train at ${config.trainer_price:g}/h; machines of"
        f" {config.engine_gpus} at ${config.engine_price:g}/h, on demand ${config.on_demand_price:g}/h;"
        f" {until_s / 3600:g} h, seed {config.seed}, policy {config.policy}. Simulated.",
        highlight=False,
    )
    for outcome in outcomes:
        if outcome.placement_fallbacks:
            shown.print(
                f"{outcome.setup}: policy={config.policy} failed {outcome.placement_fallbacks} times, and"
                f" least_work decided instead: {outcome.placement_fault}",
                highlight=False,
                markup=False,
            )
    shown.print(_table(outcomes, shown.width))


def _table(outcomes: "list[Outcome]", width: int) -> "Table":
    from rich.table import Table

    first = outcomes[0]
    cells: dict[str, Callable[[Any], str]] = {
        "machines": lambda outcome: f"{outcome.engines:.1f}",
        "steps": lambda outcome: str(outcome.iterations),
        "tokens/s": lambda outcome: f"{outcome.tokens_per_s:,.0f}",
        "x": lambda outcome: f"{outcome.tokens_per_s / first.tokens_per_s:.2f}x",
        "$/step": lambda outcome: f"{outcome.cost_per_step:.2f}",
        "$/M tokens": lambda outcome: f"{outcome.cost_per_million_tokens:.3f}",
        "tokens/$": lambda outcome: _change(first.cost_per_million_tokens, outcome.cost_per_million_tokens),
        "lost tokens": lambda outcome: f"{outcome.lost_tokens:,.0f} ({outcome.lost_share:.2%})",
        "re-prefilled": lambda outcome: f"{outcome.prefilled_again_tokens:,}",
        "trainer waits": lambda outcome: f"{outcome.waiting_share:.0%}",
        "engines idle": lambda outcome: f"{outcome.engines_idle_share:.0%}",
        "deaths": lambda outcome: str(outcome.engine_deaths),
    }
    names = [outcome.setup.replace("_", " ") for outcome in outcomes]
    table = Table("setup", box=None, header_style="bold")
    if width >= WIDE:  # one row per setup
        for heading in cells:
            table.add_column(heading, justify="right", no_wrap=True)
        for name, outcome in zip(names, outcomes, strict=True):
            table.add_row(name, *(cell(outcome) for cell in cells.values()))
    else:  # a column a setup: a terminal of 80 columns has no room for twelve numbers in a row
        for name in names:
            table.add_column(name.replace(" ", "\n"), justify="right")
        for heading, cell in cells.items():
            table.add_row(heading, *(cell(outcome).replace(" (", "\n(") for outcome in outcomes))
    return table


def _change(before: float, now: float) -> str:
    """Return how much more a dollar buys; a dash where nothing costs anything."""
    return f"{before / now - 1:+.0%}" if before and now else "-"
