"""Checks GPUs, interpreter, model and name before a worker asks a manager or starts an engine.

An engine reports the same faults after half a minute, as the traceback of one of its processes.
"""

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rl_agent.engine.gpus import count_gpus
from rl_agent.errors import UsageError

_GPUS = re.compile(r"(\d+|(GPU|MIG)-[\w/-]+)(,(\d+|(GPU|MIG)-[\w/-]+))*")
CONFIGURATIONS = ("config.json", "params.json")
"""The formats of transformers and of Mistral: vLLM reads both."""
_NAME = re.compile(r"[\w.,:@/+-]{1,200}")


def check_name(name: str | None) -> None:
    """Raises UsageError: operators and metrics name an engine in URLs and labels."""
    if name is not None and not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: 1 to 200 letters, digits or any of . , : @ / + - _ , no spaces")


def check_gpus(gpus: str | None, environ: Mapping[str, str], devices: Path = Path("/dev")) -> None:
    """Raises UsageError if `gpus` names no GPU of this machine.

    A container may have the GPUs' device files and no tool that lists them: then the engine finds out.
    """
    if gpus is None:
        return
    if not _GPUS.fullmatch(gpus):
        raise UsageError(f"--gpus {gpus!r}: GPU numbers separated by commas, such as 0,1")
    count = count_gpus({name: environ[name] for name in environ if name != "CUDA_VISIBLE_DEVICES"})
    if count == 0 and any(next(devices.glob(pattern), None) for pattern in ("nvidia[0-9]*", "kfd")):
        return
    if count == 0:
        raise UsageError(
            f"--gpus {gpus}: this machine shows no GPU (nvidia-smi and rocm-smi list none);"
            " leave --gpus out for an engine on the CPU"
        )
    absent = [gpu for gpu in gpus.split(",") if gpu.isdigit() and int(gpu) >= count]
    if absent:
        raise UsageError(f"--gpus {gpus}: there is no GPU {absent[0]}; the last one is {count - 1}")


def check_engine(engine: str, python: str) -> None:
    """Raises UsageError if the interpreter `python` is absent, or is this one and lacks the engine."""
    if shutil.which(python) is None:
        raise UsageError(f"--engine-python {python}: there is no such program")
    if python == sys.executable and importlib.util.find_spec(engine) is None:
        raise UsageError(
            f"--engine {engine}: this Python has no {engine}; name one that has it with --engine-python PATH"
        )


def check_model_folder(model: str | None) -> None:
    """Raises UsageError if `model` is a path, and not of a folder with a model; hub names are not checked."""
    if model is None:
        return
    folder = Path(model).expanduser()
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1 or os.path.lexists(folder)
    is_url = "://" in model
    if not model or (is_path and not is_url and not folder.exists()):
        raise UsageError(f"--model {model!r}: there is no such folder; name a model's folder or its hub name")
    if folder.is_dir() and not any((folder / name).is_file() for name in CONFIGURATIONS):
        raise UsageError(f"--model {model}: the folder has no config.json, so it is not a model")
    if folder.is_file() and folder.suffix != ".gguf":
        raise UsageError(f"--model {model}: is a file; give the folder of the model")
