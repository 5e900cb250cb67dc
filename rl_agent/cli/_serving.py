"""Parts of the verbs that serve until they are told to leave: their log, their signals, their options."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from rl_agent.errors import deliberate

Serve = Callable[[asyncio.Event], Awaitable[None]]
"""Serves until the event is set."""


def log_with_times() -> None:
    """Log to stderr, each line with its time of day."""
    form = "%(asctime)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%H:%M:%S", stream=sys.stderr)


def serve_until_told(serve: Serve, *, second_ends: bool = False, is_uvloop: bool = True) -> None:
    """Serve until SIGINT or SIGTERM; with `second_ends` a second one ends the process at once."""
    log_with_times()
    loop_factory = None
    if is_uvloop:
        import uvloop

        loop_factory = uvloop.new_event_loop

    async def run() -> None:
        leaving = asyncio.Event()

        def leave() -> None:
            if second_ends and leaving.is_set():
                os._exit(128 + signal.SIGTERM)
            leaving.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, leave)
        await serve(leaving)

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run())
    except BaseExceptionGroup as group:
        raise deliberate(group) from None


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a service that may answer by TLS."""
    parser.add_argument(
        "--tls-certificate", type=Path, metavar="PEM", help="serve over TLS with this certificate"
    )
    parser.add_argument("--tls-key", type=Path, metavar="PEM", help="its key")
