"""`manager`: serve a rollout pool."""

import argparse
import asyncio
import logging
import os
import sys

from rl_agent.errors import deliberate

SUMMARY = "serve a rollout pool: engines join it, requests go to it"
EXAMPLE = """examples:
  python -m rl_agent.cli manager
  python -m rl_agent.cli manager port=5001 policy=least_loaded journal=pool.jsonl
  python -m rl_agent.cli manager host=0.0.0.0 token_file=pool.token

configs/pool/default.yaml states and explains every key. The address is printed once it is listened on.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rl_agent.cli manager",
        description=SUMMARY,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="instead of configs/pool/default.yaml"
    )
    options = parser.parse_args(argv)

    import uvloop

    from rl_agent.pool.manager import serve
    from rl_agent.pool.settings import load_settings

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    config = load_settings(options.settings, os.environ)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config, lambda url: print(url, flush=True)))
    except BaseExceptionGroup as group:
        raise deliberate(group) from None
    return 0
