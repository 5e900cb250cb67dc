"""The action `scale` of the verb `pool`: machines come and go as a pool wants them."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl_agent.cli._numbers import above_0, seconds
from rl_agent.cli._options import add_manager, manager_address, manager_of, read_token, verb_parser
from rl_agent.cli._serving import serve_until_told
from rl_agent.errors import DeadlineError, HarnessError, UsageError

if TYPE_CHECKING:
    from rl_agent.autoscaler.fleet import Fleet
    from rl_agent.autoscaler.manager_link import HttpManager
    from rl_agent.autoscaler.providers.settings import ProviderSettings
    from rl_agent.autoscaler.reconcile_loop import ReconcileLoop
    from rl_agent.pool.demand.records import Provider
    from rl_agent.pool.manager_file import ManagerFile

SUMMARY = "start and stop machines as a pool wants them, with a provider of your choice"
EXAMPLE = """examples
  rl-agent pool scale --provider command --manager http://10.0.0.1:5000 --provider-file aws.yaml
  rl-agent pool scale --provider command --provider-file local.yaml --max-engines 2 --dry-run
  rl-agent pool scale --provider slurm --manager-file /shared/exp1/runs/latest/pool.url

The manager decides how many machines of which kind run (scale.kinds in its settings, GET /wanted). Only
machines with names FLEET-NUMBER are ever stopped; FLEET ends in random letters that --state stores, so two
fleets with the same --fleet differ. Ctrl+C or TERM drains and stops all machines, because they cost money. A
second one ends this command at once; the same command with the same --state finds the remaining machines
again. To restart this command without stopping its machines, use --leave keep. docs/how-to/scale-a-pool.md
explains the first steps.
"""
MOST_NAME = 40
REPORT_EVERY_S = 5.0


def main(argv: list[str]) -> int:
    options = parser().parse_intermixed_args(argv)
    _check(options)

    from rl_agent.autoscaler.catalog import CATALOG
    from rl_agent.autoscaler.fleet import read_fleet
    from rl_agent.autoscaler.providers.settings import read_settings
    from rl_agent.system.owner import sole_owner

    entry = CATALOG[options.provider]
    if options.settle_s is None:
        options.settle_s = entry.settle_s
    read_fleet(options.state)  # what is not a state of a fleet gets no lock beside it
    with sole_owner(options.state, f"--state {options.state}", "one `pool scale` a fleet"):
        fleet = _fleet(options)
        # Machines without a manager still have to be ended.
        options.manager, file = manager_of(options, fleet.manager if fleet.machines else "")
        fleet = replace(fleet, manager=options.manager)
        settings = read_settings(
            entry.settings,
            options.provider_file,
            options.settings,
            manager=options.engines_manager or options.manager,
            fleet=fleet.name,
        )
        settings.check_programs()
        left: list[str] = []
        serve_until_told(
            lambda leaving: _scale(options, fleet, settings, file, leaving, left),
            second_ends=True,
            is_uvloop=False,
        )
    if left:
        raise DeadlineError(
            f"after --leave-timeout-s {options.leave_timeout_s:g} these machines may still run:"
            f" {', '.join(left)}; the same command continues with them"
        )
    return 0


def parser() -> argparse.ArgumentParser:
    from rl_agent.autoscaler.catalog import CATALOG

    parser = verb_parser("pool scale", SUMMARY, EXAMPLE)
    summaries = "; ".join(f"{name}: {entry.summary}" for name, entry in CATALOG.items())
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the provider")
    parser.add_argument("--provider", required=True, choices=tuple(CATALOG), help=summaries)
    parser.add_argument(
        "--provider-file", type=Path, metavar="YAML", help="settings of the provider, in a file"
    )
    add_manager(parser)
    parser.add_argument(
        "--engines-manager",
        type=manager_address,
        metavar="URL",
        help="address of the manager as seen from the machines; default: --manager",
    )
    parser.add_argument("--token-file", type=Path, help="file with the token; default: $RL_AGENT_POOL_TOKEN")
    parser.add_argument(
        "--admin-token-file",
        type=Path,
        help="file with the manager's admin token, for draining; default: the token",
    )
    parser.add_argument("--tls-ca", type=Path, metavar="PEM", help="additional certificates to trust")
    parser.add_argument(
        "--state",
        type=Path,
        default=Path("pool-scale.json"),
        help="file that records the machines; keep it (default: %(default)s)",
    )
    parser.add_argument(
        "--fleet",
        metavar="NAME",
        help="prefix of their names, before random letters; default: the one in --state, or rl",
    )
    parser.add_argument(
        "--adopt", metavar="FLEET", help="adopt the machines FLEET-NUMBER of a fleet whose --state was lost"
    )
    parser.add_argument(
        "--max-engines", type=int, metavar="N", help="maximum number of machines of all kinds"
    )
    parser.add_argument(
        "--max-dollars-per-hour",
        type=above_0,
        metavar="D",
        help="maximum cost of all machines, ending ones included",
    )
    for flag, default, words in (
        ("--poll-s", 5.0, "interval between two looks"),
        ("--start-timeout-s", 900.0, "time limit from a machine's request until its engine has joined"),
        ("--drain-s", 120.0, "time limit for an engine to hand its requests over"),
        ("--backoff-s", 30.0, "pause after a failed start; doubles up to --backoff-limit-s"),
        ("--backoff-limit-s", 900.0, "longest such pause"),
        ("--call-timeout-s", 90.0, "time limit of one call to the provider"),
        (
            "--manager-timeout-s",
            1800.0,
            "a manager (or its file) is lost if it does not answer for this long",
        ),
        ("--leave-timeout-s", 900.0, "time limit to end all machines at the end"),
    ):
        parser.add_argument(
            flag, type=seconds, default=default, metavar="S", help=f"{words} (default {default:g})"
        )
    settled = ", ".join(f"{name} {entry.settle_s:g}" for name, entry in CATALOG.items())
    parser.add_argument(
        "--settle-s",
        type=seconds,
        metavar="S",
        help=f"a machine is gone if it is not listed for this long (default: {settled})",
    )
    parser.add_argument(
        "--when-lost",
        choices=("keep", "min"),
        default="min",
        help="without a manager: keep all machines, or reduce each kind to min_engines (default min)",
    )
    parser.add_argument(
        "--leave",
        choices=("drain", "keep"),
        default="drain",
        help="at Ctrl+C or TERM: drain and stop all machines, or keep and pay for them (default drain)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print once what would be done, and do nothing"
    )
    return parser


def _check(options: argparse.Namespace) -> None:
    if options.max_engines is not None and options.max_engines < 1:
        raise UsageError(f"--max-engines {options.max_engines}: at least 1")
    name = options.adopt or options.fleet
    if options.adopt and options.fleet:
        raise UsageError("--adopt: names the whole fleet; leave --fleet out")
    plain = name is None or (name.isascii() and name == name.lower() and name.replace("-", "").isalnum())
    if not plain or (name is not None and not (name[0].isalpha() and len(name) <= MOST_NAME)):
        raise UsageError(
            f"--fleet {name}: expected small letters, digits and dashes, a letter first, {MOST_NAME} at most"
        )


def _fleet(options: argparse.Namespace) -> "Fleet":
    """Return the fleet as it was left, or a new one."""
    from rl_agent.autoscaler.fleet import Fleet, new_fleet, read_fleet

    fleet = read_fleet(options.state)
    if fleet is None:
        return Fleet(options.adopt) if options.adopt else new_fleet(options.fleet or "rl")
    begins = fleet.name.rpartition("-")[0]
    if options.fleet not in (None, fleet.name, begins) or options.adopt not in (None, fleet.name):
        raise UsageError(
            f"--fleet {options.fleet or options.adopt}: {options.state} is of the fleet {fleet.name};"
            " give another --state"
        )
    return fleet


async def _scale(
    options: argparse.Namespace,
    fleet: "Fleet",
    settings: "ProviderSettings",
    file: "ManagerFile | None",
    leaving: asyncio.Event,
    left: list[str],
) -> None:
    from rl_agent.autoscaler.catalog import CATALOG
    from rl_agent.autoscaler.fleet import write_fleet
    from rl_agent.autoscaler.handshake import until_accepted
    from rl_agent.autoscaler.manager_link import HttpManager

    read_admin = partial(read_token, options.admin_token_file) if options.admin_token_file else lambda: None

    def on_move(url: str) -> None:
        if options.engines_manager is None:
            settings.manager = url  # for machines that are started from now on

    read_own = partial(read_token, options.token_file)
    manager = HttpManager(options.manager, read_own, read_admin, options.tls_ca, file, on_move)
    if not options.dry_run:  # a folder that takes no file is found before any machine is asked for
        write_fleet(options.state, fleet)
    provider = CATALOG[options.provider].connect(settings)
    async with asyncio.TaskGroup() as jobs:
        loop = _reconcile_loop(options, fleet, provider, manager)
        if options.dry_run:
            await loop.look()
            return
        is_new = not fleet.machines
        accepting = until_accepted(
            *(manager, options.manager, _report, leaving), poll_s=options.poll_s, needs_kinds=is_new
        )
        accepted = jobs.create_task(accepting, name="manager handshake")
        if is_new:  # there is nothing to do without a manager, nor is anything asked for
            await asyncio.wait((accepted,))
        reporting = jobs.create_task(_report_failed_starts(manager, loop), name="report failed starts")
        _report(f"the fleet is {fleet.name}, its state {options.state}")
        saying = jobs.create_task(_say_leaving(leaving), name="leaving")
        await loop.run(leaving)
        saying.cancel()
        names = ", ".join(loop.fleet.machines) or "none"
        if options.leave == "keep":
            _report(f"left running: {names}")
        else:
            _report(f"ending all machines: {names}; a second Ctrl+C leaves them running")
            if not await loop.end_all(options.leave_timeout_s):
                left += loop.what_is_left()
        reporting.cancel()


async def _say_leaving(leaving: asyncio.Event) -> None:
    """Report at once that the signal has come: calls to a slow provider may still run for a while."""
    await leaving.wait()
    _report("ending when the running calls have ended")


async def _report_failed_starts(manager: "HttpManager", loop: "ReconcileLoop") -> None:
    """Report to the manager every few seconds which kinds the provider does not give."""
    from rl_agent.autoscaler.fleet import failed_starts

    clock = _steady_clock()
    while True:
        with suppress(HarnessError):  # the loop asks the same manager, and reports what is wrong with it
            await manager.report(loop.fleet.name, failed_starts(loop.fleet, clock()))
        await asyncio.sleep(REPORT_EVERY_S)


def _reconcile_loop(
    options: argparse.Namespace, fleet: "Fleet", provider: "Provider", manager: "HttpManager"
) -> "ReconcileLoop":
    from rl_agent.autoscaler.fleet import resumed, write_fleet
    from rl_agent.autoscaler.observation import ScaleRules, WhenLost
    from rl_agent.autoscaler.reconcile_loop import ReconcileLoop, ReconcileTimeouts

    rules = ScaleRules(
        start_timeout_s=options.start_timeout_s,
        drain_s=options.drain_s,
        settle_s=options.settle_s,
        backoff_s=options.backoff_s,
        backoff_limit_s=options.backoff_limit_s,
        stop_again_s=options.settle_s / 2,
        manager_timeout_s=options.manager_timeout_s,
        when_lost=WhenLost(options.when_lost),
        max_engines=options.max_engines,
        max_price_per_hour=options.max_dollars_per_hour,
    )
    return ReconcileLoop(
        resumed(fleet),
        provider,
        manager,
        rules,
        ReconcileTimeouts(options.poll_s, options.call_timeout_s),
        write=partial(write_fleet, options.state),
        report=_report,
        clock=_steady_clock(),
        is_dry=options.dry_run,
    )


def _steady_clock() -> Callable[[], float]:
    """Return a clock of the epoch's seconds that goes on evenly when the machine's clock is set."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


def _report(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
