"""Write the configuration keys of other trainers to tests/unit/config/overrides/keys_of_others.json.

    pip download --no-deps trl transformers verl
    python docs/list_keys_of_others.py trl-1.16.0-….whl transformers-5.24.0-….whl verl-0.9.1-….whl

Keys of verl's `ppo_trainer` and flags of TRL's `trl grpo`, read from the wheels without importing them; so
the test that compares them with `rl_agent/config/overrides/elsewhere.py` downloads nothing. prime-rl has no
wheel: its entry was read in its repository, at the commit that the entry names, and stays as it is.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/unit/config/overrides/keys_of_others.json"
LEFT_OUT = (
    "profiler",
    "megatron",
    "veomni",
    "torchtitan",
    "_target_",
    "critic",
    "distillation",
    "reward_model",
)
"""Parts of verl's keys that no `ppo_trainer` of a GRPO run sets."""


CLASSES = {
    "GRPOConfig": "trl/trainer/grpo_config.py",
    "ModelConfig": "trl/trainer/model_config.py",
    "ScriptArguments": "trl/scripts/utils.py",
    "GRPOScriptArguments": "trl/scripts/grpo.py",
    "TrainingArguments": "transformers/training_args.py",
}
"""The classes whose fields are the flags of `trl grpo`, each with its module; the last one is inherited."""


def fields(wheel: ZipFile) -> list[str]:
    """Return the fields of those of `CLASSES` that a wheel has."""
    names = []
    for name, path in CLASSES.items():
        module = ast.parse(wheel.read(path) if path in wheel.namelist() else "")
        for found in (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name):
            targets = (node.target for node in found.body if isinstance(node, ast.AnnAssign))
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def dotted(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def keys(wheel: ZipFile) -> list[str]:
    """Return the keys of verl's `ppo_trainer`."""
    composed = yaml.safe_load(wheel.read("verl/trainer/config/_generated_ppo_trainer.yaml"))
    return [key for key in dotted(composed) if not any(part in key for part in LEFT_OUT)]


def main() -> None:
    listed = json.loads(LIST.read_text()) if LIST.exists() else {}
    for path in map(Path, sys.argv[1:]):
        name, version, *_ = path.name.split("-")
        with ZipFile(path) as wheel:
            listed[name] = {"version": version, "keys": (keys if name == "verl" else fields)(wheel)}
    LIST.write_text(json.dumps(listed, indent=1) + "\n")


if __name__ == "__main__":
    main()
