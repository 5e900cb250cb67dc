"""The vLLM server process of a run: its command, its environment, and what answers on its port.

A server is started on the resolved model folder, so `/v1/models` names the weight version it holds. What
answers on the port and does not name a model of this run is a stranger: reported, never ended.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rl_agent.config.plan import Config, Plan
from rl_agent.engine.model import OLDER, resolve_model
from rl_agent.engine.served import version_served
from rl_agent.engine.sharing import engine_devices, engine_gpu_count
from rl_agent.errors import ConfigError
from rl_agent.http import client as http_client
from rl_agent.weights.load.vllm_names import WORKER_EXTENSION

PROBE_TIMEOUT_S = 2.0
_ERROR = re.compile(r"(Error|Exception): \S")
_PROCESS = re.compile(r"^\(\w+ pid=\d+\) ")
"""vLLM puts this before the lines of its processes."""
_STAMP = re.compile(r"^[A-Z]+ [\d-]+ [\d:.,]+ \[[^\]]*\] ")
"""Level, time and place, with which vLLM begins a line."""
_TOY_BYTES = 32 << 20
"""Weights below this are a toy's; those of the smallest models that people use take ten times as much."""
_LOG_CHARACTERS = 120
_REASON_CHARACTERS = 500
_STAGE_LINES = 200
_STAGES = {
    "Starting vLLM": "opening its port",
    "Capturing": "capturing CUDA graphs",
    "KV cache size": "warming up",
    "torch.compile takes": "compiling",
    "Compiling a graph": "compiling",
    "Loading weights took": "making room for the KV cache",
    "checkpoint shards": "loading weights",
    "load model": "loading weights",
    "Initializing a V1 LLM engine": "starting its workers",
}
"""Words in vLLM's log with the part of its start that begins there; the newest such line counts."""
VLLM_SERVE = ("-m", "rl_agent.engine.vllm_serve")
"""These words follow `python`; then come the model and vLLM's flags."""


class Answer(Enum):
    """The result of probing the engine's address."""

    NOTHING = "nothing"
    NOT_READY = "not-ready"
    WANTED = "wanted"
    OLD_VERSION = "old-version"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Probe:
    answer: Answer
    detail: str
    """One line for a person: what was asked and what came back."""
    weight_version: int | None = None


def data_parallel_size(config: Config, num_gpus: int) -> int:
    """Return `engine.data_parallel_size`, else a replica for every `tensor_parallel_size` GPUs."""
    engine = config.engine
    if engine.data_parallel_size is not None:
        return engine.data_parallel_size
    return max(1, engine_gpu_count(config, num_gpus) // engine.tensor_parallel_size)


def server_argv(plan: Plan, python: str = sys.executable) -> list[str]:
    """Return the command of the run's own server, on the newest model."""
    config = plan.config
    return engine_argv(plan, resolve_model(config).path, config.engine.host, config.engine.port, python)


def engine_argv(plan: Plan, model: str, host: str, port: int, python: str = sys.executable) -> list[str]:
    """Return the command of an engine with the run's settings; `engine.extra_args` wins over them."""
    config, engine = plan.config, plan.config.engine
    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "dtype": engine.dtype,
        "max-num-seqs": engine.max_num_seqs,
        "gpu-memory-utilization": engine.gpu_memory_utilization,
        "max-model-len": engine.max_model_len,
        "tensor-parallel-size": engine.tensor_parallel_size,
        "data-parallel-size": data_parallel_size(config, plan.hardware.num_gpus),
        "limit-mm-per-prompt": engine.limit_mm_per_prompt,
        "allowed-local-media-path": str(config.log_path),  # images of trajectories lie there
        "seed": config.seed,
        "enforce-eager": engine.enforce_eager or None,
        "trust-remote-code": config.model.trust_remote_code or None,
        "reasoning-parser": config.model.reasoning_parser,
        "worker-extension-cls": WORKER_EXTENSION if config.loads_weights else None,
    }
    if plan.takes_turns and engine.device == "gpu":
        flags["enable-sleep-mode"] = True
    flags |= {name.lstrip("-").replace("_", "-"): value for name, value in engine.extra_args.items()}
    words = [word for name, value in flags.items() for word in _flag_words(name, value)]
    return [python, *VLLM_SERVE, model, *words]


def _flag_words(name: str, value: Any) -> list[str]:
    """true: --name; false: --no-name; null: left out; a list: several words; a dict: JSON."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]


def server_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the server's whole environment: the caller's, key, GPUs or threads, then `engine.extra_env`."""
    key = environ.get(config.engine.api_key_env_var)
    variables = {"VLLM_API_KEY": key} if key else {}
    if config.loads_weights:
        variables |= {"VLLM_SERVER_DEV_MODE": "1"}
    if config.weights.is_inplace:
        variables |= engine_devices(config, environ)
    if config.engine.device == "cpu" and "OMP_NUM_THREADS" not in environ:
        variables["OMP_NUM_THREADS"] = str(cpu_threads(resolve_model(config).path))
    return {**environ, **variables, **config.engine.extra_env}


def cpu_threads(model: str) -> int:
    """Return how many threads serve a model on a CPU: one for a toy, else one for each core.

    A second thread gains nothing on a model of a million parameters: the engine took 9 s of processor time
    for 2,048 short episodes with two threads, 4.5 s with one. A real model is served faster by all cores.
    """
    size_bytes = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    return 1 if 0 < size_bytes < _TOY_BYTES else len(os.sched_getaffinity(0))


def probe(config: Config, environ: Mapping[str, str], timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
    """Ask `/health` and `/v1/models` who is there; a ConfigError if `engine.url` is not an address."""
    url = config.engine.base_url
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"engine.url={url}: expected http://host:port")
    try:
        _get(url + "/health", config, environ, timeout_s)
        text = _get(url + "/v1/models", config, environ, timeout_s)
        roots = [str(card.get("root") or card["id"]) for card in json.loads(text)["data"]]
    except http_client.RequestRefused as error:
        if error.status == 503:
            return Probe(Answer.NOT_READY, f"{url} answers 503: it is starting or has failed")
        return Probe(Answer.STRANGER, str(error))
    except TimeoutError:
        return Probe(Answer.NOT_READY, f"{url} did not answer within {timeout_s:.0f} s")
    except OSError as error:
        return Probe(Answer.NOTHING, f"{url}: {error}")
    except Exception as error:  # a stranger may answer anything
        return Probe(Answer.STRANGER, f"{url} does not answer like an engine: {error!r}")
    return judge_roots(roots, config)


def judge_roots(roots: list[str], config: Config) -> Probe:
    """Return what a server that says it loaded `roots` is to this run."""
    model = resolve_model(config)
    url = config.engine.base_url
    versions = {root: version_served(root, config, model) for root in roots}
    candidates = {root: version for root, version in versions.items() if version is not None}
    if not candidates:
        shown = ", ".join(roots) or "no model"
        return Probe(Answer.STRANGER, f"{url} serves {shown}; this run wants {model.path}")
    root, version = max(candidates.items(), key=lambda item: item[1] == model.weight_version)
    if version == model.weight_version:
        return Probe(Answer.WANTED, f"{url} serves {root} (weight version {version})", version)
    known_as = "as it was before model.pt was switched" if version == OLDER else f"weight version {version}"
    detail = f"{url} serves {root} ({known_as}); the newest is {model.weight_version}"
    return Probe(Answer.OLD_VERSION, detail, version)


def _get(url: str, config: Config, environ: Mapping[str, str], timeout_s: float) -> str:
    key = environ.get(config.engine.api_key_env_var)
    return http_client.request(url, token=key, timeout_s=timeout_s).decode("utf-8", "replace")


LOG_ENDS = "; its log ends: "
"""Separates how long something takes from the last line of its log."""


def last_words(log: Path) -> str:
    """Return the last line of a log, shortened; empty where there is no log."""
    if not log.is_file():
        return ""
    (line,) = last_lines(log, 1).splitlines()[-1:] or ("nothing yet",)
    quoted = line.rpartition(LOG_ENDS)[2]  # a worker's log ends with the end of its engine's
    return _STAMP.sub("", _PROCESS.sub("", quoted))[:_LOG_CHARACTERS]


def stage_in(log: Path) -> str:
    """Return how far a starting vLLM server is, by its log; "starting" where the log does not say."""
    lines = last_lines(log, _STAGE_LINES).splitlines()
    stages = (stage for line in reversed(lines) for words, stage in _STAGES.items() if words in line)
    return next(stages, "starting")


def reason_in(log: Path) -> str:
    """Return the line of a log that says why its process failed: the last error, else the last line."""
    lines = last_lines(log, 200).splitlines()
    errors = [line for line in lines if _ERROR.search(line) and "root cause" not in line]
    reason = (errors or lines or ["nothing was written"])[-1]
    return _PROCESS.sub("", reason).strip()[:_REASON_CHARACTERS]


def last_lines(log: Path, count: int = 15) -> str:
    """Return the end of a log, for the message about the process that wrote it.

    vLLM's last words are often those of a process that saw another one fail: the error before them is put
    first.
    """
    if not log.is_file():
        return "(no log)"
    with log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 64 * 1024))
        lines = file.read().decode("utf-8", "replace").splitlines()
    errors = [line for line in lines[:-count] if _ERROR.search(line) and "root cause" not in line]
    return "\n".join([*errors[-1:], *lines[-count:]])
