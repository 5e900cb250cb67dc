"""The verb `join-pool` starts an engine on this machine and lends it to a pool."""

import argparse
import asyncio
import os
import re
import secrets
import shlex
import socket
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from yarl import URL

from rl_agent.cli._numbers import not_negative, seconds, whole_from_1
from rl_agent.cli._options import add_manager, manager_of, read_plan, read_token, verb_parser
from rl_agent.cli._serving import serve_until_told
from rl_agent.errors import UsageError

if TYPE_CHECKING:
    from rl_agent.worker.settings import WorkerSettings

LOOPBACK = "127.0.0.1"
SUMMARY = "start an engine on this machine and lend it to a pool until Ctrl+C or TERM"
EXAMPLE = """examples:
  rl-agent join-pool --manager http://10.0.0.1:5000 --token-file pool.token --gpus 0,1
  rl-agent join-pool --model Qwen/Qwen3-1.7B --price 2.66 --notice aws
  rl-agent join-pool --manager-file /shared/exp1/runs/latest/pool.url --token-file pool.token
  rl-agent join-pool --model model.pt --engine-args '--max-model-len 4096 --dtype bfloat16'

TERM or Ctrl+C drains: the pool takes the requests back with their tokens when their chunks end, within
--drain-s at the latest; then the engine ends.
Several workers on one machine only need different --gpus; their ports and names are chosen automatically.
With several --manager, runs that publish adapters alone share the engine and its --capacity.
"""


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)

    import aiohttp

    from rl_agent.http.tls import trusting
    from rl_agent.served_model.verify import verify_model
    from rl_agent.worker.engine_process import gpu_environment
    from rl_agent.worker.run_worker import settings_of_run
    from rl_agent.worker.several_pools import run_workers

    plan = None if options.plan is None else read_plan(options.plan)
    if plan is None:
        _check(options)
        pools = [_settings(pool) for pool in _pools(options)]
    else:
        pools = [settings_of_run(plan, verify_model)]
    os.environ.update(gpu_environment(options.gpus, {}))  # weights that come by NCCL come to the engine's GPU
    trusted = trusting(pools[0].tls_ca)

    async def serve(leaving: asyncio.Event) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0, ssl=trusted)
        async with aiohttp.ClientSession(connector=connector) as session:
            await run_workers(pools, session, leaving)

    serve_until_told(serve, is_uvloop=False)
    return 0


def parser() -> argparse.ArgumentParser:
    parser = verb_parser("join-pool", SUMMARY, EXAMPLE)
    parser.add_argument("--plan", type=Path, help="plan.json of a run: a node's own engine in its run's pool")
    add_manager(parser, action="append")
    parser.add_argument(
        "--token-file",
        type=Path,
        action="append",
        help="file with the token, or one for each --manager; default: $RL_AGENT_POOL_TOKEN",
    )
    parser.add_argument("--tls-ca", type=Path, metavar="PEM", help="additional certificates to trust")
    parser.add_argument(
        "--engine", choices=("vllm", "sglang"), default="vllm", help="which engine to start (default vllm)"
    )
    parser.add_argument(
        "--engine-python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter in which it is installed; default: this one",
    )
    parser.add_argument("--model", help="folder or hub name; default: the pool's model")
    parser.add_argument("--gpus", metavar="0,1", help="GPUs of this engine; default: all visible ones")
    parser.add_argument(
        "--engine-args", default="", metavar="WORDS", help="additional arguments of the engine"
    )
    parser.add_argument(
        "--capacity", type=whole_from_1, help="concurrent requests; default: the pool's default_capacity"
    )
    parser.add_argument(
        "--price", type=not_negative, default=0.0, help="dollars per hour, for the pool's cost accounting"
    )
    parser.add_argument(
        "--kind", default="", help="kind of the manager's scale.kinds for which it was started"
    )
    parser.add_argument("--name", help="default: host name plus GPUs or a random suffix")
    parser.add_argument(
        "--direct",
        metavar="ADDRESS",
        nargs="?",
        const="",
        help="let the manager connect to the engine at ADDRESS; default: this worker opens the connection",
    )
    parser.add_argument(
        "--notice",
        choices=("aws", "gcp", "azure", "auto"),
        help="drain when this cloud takes the machine back",
    )
    parser.add_argument("--drain-s", type=seconds, default=20.0, help="time limit of a drain (default 20)")
    parser.add_argument(
        "--manager-timeout-s",
        type=seconds,
        default=600.0,
        help="time to wait for a manager that has not started yet (default 600)",
    )
    parser.add_argument(
        "--start-timeout-s",
        type=seconds,
        default=600.0,
        help="time limit of the engine's start (default 600)",
    )
    parser.add_argument(
        "--weights",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="key of the group `weights`, e.g. peer_port=7000 or store=FOLDER; repeatable",
    )
    parser.add_argument("--log", type=Path, help="file for the engine's output; default: a temporary file")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Raises UsageError for what no engine could be started with."""
    from rl_agent.worker import preflight

    preflight.check_name(options.name)
    preflight.check_model_folder(options.model)
    preflight.check_gpus(options.gpus, os.environ)
    preflight.check_engine(options.engine, options.engine_python)


def _pools(options: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the options of each pool that the engine is for. Raises UsageError."""
    managers, tokens = options.manager or [None], options.token_file or [None]
    count = len(managers)
    if len(tokens) not in (1, count):
        raise UsageError(f"--token-file: expected one, or one for each of {count} managers")
    if count > 1:
        _check_shared(options, managers)
    tokens = tokens * count if len(tokens) == 1 else tokens
    own = [{"manager": manager, "token_file": token} for manager, token in zip(managers, tokens, strict=True)]
    return [argparse.Namespace(**vars(options) | each) for each in own]


def _check_shared(options: argparse.Namespace, managers: list[str]) -> None:
    """Raises UsageError for what an engine of several pools cannot have."""
    count, loras = len(managers), re.findall(r"--max[-_]loras[ =]+(\d+)", options.engine_args)
    if twice := next((manager for manager in managers if managers.count(manager) > 1), None):
        raise UsageError(f"--manager {twice}: is given twice")
    if loras and int(loras[-1]) < count:
        raise UsageError(f"--engine-args --max-loras {loras[-1]}: {count} runs need {count}; leave it out")
    if options.engine != "vllm":
        raise UsageError(f"--engine {options.engine}: keeps no adapters; with several --manager use vllm")
    if options.direct is not None:
        raise UsageError("--direct: with several --manager the worker opens the connections; leave it out")
    if options.capacity is None or options.capacity < count:
        raise UsageError(
            f"--capacity: expected the whole engine's, {count} or more: the managers divide it among them"
        )


def _settings(options: argparse.Namespace) -> "WorkerSettings":
    """Raises UsageError."""
    from rl_agent.http.tokens import is_loopback
    from rl_agent.pool.settings import load_weights
    from rl_agent.served_model.verify import verify_model
    from rl_agent.worker.engine_process import EngineCommand, gpu_environment
    from rl_agent.worker.manager_client import own_address
    from rl_agent.worker.preemption import SOURCES
    from rl_agent.worker.settings import WorkerSettings

    address, manager_file = manager_of(options)
    manager = URL(address)
    host = manager.host or ""
    try:
        extra = tuple(shlex.split(options.engine_args))
    except ValueError as error:
        raise UsageError(f"--engine-args {options.engine_args!r}: {error}") from error
    is_local = is_loopback(host)
    can_move = manager_file is not None  # to where it cannot reach this host's loopback
    is_direct = (is_local and not can_move) or options.direct is not None
    try:
        own = own_address(manager)
    except OSError as error:
        raise UsageError(f"--manager {manager}: {error}") from error
    address = (options.direct or own) if is_direct else LOOPBACK
    name = options.name or _name(options.gpus)
    loads_weights = is_loopback(address)
    if options.weights and not loads_weights:
        raise UsageError(
            f"--weights {options.weights[0]}: this engine takes no weights while it runs;"
            " one without --direct does"
        )
    return WorkerSettings(
        manager=str(manager.origin()),
        read_token=partial(read_token, options.token_file),
        name=name,
        command=EngineCommand(
            kind=options.engine,
            host=address,
            api_key=secrets.token_hex(16) if not is_loopback(address) else None,
            extra=extra,
            environment=gpu_environment(options.gpus, os.environ),
            loads_weights=loads_weights,
            python=options.engine_python,
        ),
        model=options.model,
        is_direct=is_direct,
        capacity=options.capacity,
        price_per_hour=options.price,
        kind=options.kind,
        manager_timeout_s=options.manager_timeout_s,
        start_timeout_s=options.start_timeout_s,
        drain_s=options.drain_s,
        notice=SOURCES[options.notice]() if options.notice else None,
        log=options.log or Path(tempfile.gettempdir()) / f"engine-{name.replace('/', '-')}.log",
        weights=load_weights(options.weights),
        tls_ca=options.tls_ca,
        manager_file=manager_file,
        address=own,
        check_model=verify_model,
    )


def _name(gpus: str | None) -> str:
    return f"{socket.gethostname()}/{'gpu' + gpus if gpus else secrets.token_hex(3)}"
