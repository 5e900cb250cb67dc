"""The verb `manager` serves a rollout pool."""

import gc
import os
from pathlib import Path

from rl_agent.cli._options import read_plan, verb_parser
from rl_agent.cli._serving import serve_until_told
from rl_agent.errors import UsageError
from rl_agent.system.files import replaceable
from rl_agent.system.garbage import rare_garbage_collection

SUMMARY = "serve a rollout pool: engines join it, requests go to it"
EXAMPLE = """examples:
  rl-agent manager
  rl-agent manager port=5001 policy=least_loaded journal=pool.sqlite
  rl-agent manager host=0.0.0.0 token_file=pool.token

configs/pool/elastic.yaml explains every key. The address is printed once the manager listens.
"""


def main(argv: list[str]) -> int:
    parser = verb_parser("manager", SUMMARY, EXAMPLE)
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="override a key of configs/pool/elastic.yaml"
    )
    parser.add_argument(
        "--url-file",
        type=Path,
        metavar="PATH",
        help="write the manager's address to this file, for join-pool --manager-file",
    )
    parser.add_argument("--plan", type=Path, help="plan.json of a run: serve its pool, with its settings")
    options = parser.parse_intermixed_args(argv)

    from rl_agent.pool import run_pool
    from rl_agent.pool.manager import serve
    from rl_agent.pool.settings import load_settings, load_weights
    from rl_agent.weights.settings import base_folder

    if options.url_file is not None:
        options.url_file = replaceable(options.url_file, "--url-file")
    plan = None if options.plan is None else read_plan(options.plan)
    if plan is not None and options.settings:
        raise UsageError("--plan has the settings of the run: leave KEY=VALUE out")
    config = load_settings(options.settings, os.environ) if plan is None else run_pool.manager_settings(plan)
    versions = base_folder(load_weights(()) if plan is None else plan.config.weights)

    def on_listening(url: str) -> None:
        if plan is not None:
            run_pool.announce(plan, url)
        if options.url_file is not None:
            run_pool.write_address(options.url_file, url, config.host)
        print(url, flush=True)

    try:
        with rare_garbage_collection():
            serve_until_told(lambda leaving: serve(config, on_listening, versions, leaving))
    finally:
        gc.freeze()  # else Python looks through all that is open once more before it ends, for seconds
    return 0
