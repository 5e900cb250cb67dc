"""The runs that the README and the how-tos show, planned as `--dry-run` plans them: they start.

Typed on a machine with eight GPUs whose hub cache holds the models that the pages name, with their real
configurations. Only folders and addresses are others.
"""

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from rl_agent.env.openenv import OpenEnvEnvironment
from rl_agent.env.remote import environments
from rl_agent.monitor.report import reward_table
from rl_agent.paths import PROJECT_ROOT
from rl_agent.plan import checks
from rl_agent.plan.make import prepare
from rl_agent.plan.runs import write_plan
from rl_agent.plan.show import show
from tests.support.certificate import make_certificate
from tests.support.tiny_chat import save_tiny_model_folder
from tests.unit.chat.tool_templates import HERMES
from tests.unit.docs.documented_blocks import blocks

ROOMS = ("tutorials", "how-to", "explanation")
PAGES = [PROJECT_ROOT / "README.md"]
PAGES += sorted(page for room in ROOMS for page in (PROJECT_ROOT / "docs" / room).glob("*.md"))
SAMPLE = "…"
"""Stands in a how-to for the flags and keys of the README's command of the same kind."""
VISION = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "vision_config": {}}
TEXT = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
MODELS = {
    "Qwen/Qwen3-VL-8B-Instruct": VISION,
    "Qwen/Qwen3-VL-8B-Thinking": VISION,
    "Qwen/Qwen3-8B": TEXT,
    "Qwen/Qwen3-4B-Instruct-2507": TEXT,
    "Qwen/Qwen3-1.7B": TEXT,
}
TASK = '{"task_id": "a", "prompt": "1 + 1 =", "answer": "2", "difficulty": "easy", "env": "math"}\n'


class Line(NamedTuple):
    page: Path
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.stem}: {' '.join(self.words[2:])}"


def commands(page: Path) -> list[Line]:
    """Those in blocks of bash, with their variables as they stand."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if "<<" not in line]
    typed_commands = [
        tuple(shlex.split(line.replace(SAMPLE, f" {SAMPLE} "), comments=True)) for line in lines
    ]
    return [Line(page, words) for words in typed_commands if words[:1] == ("bash",)]


LINES = [line for page in PAGES for line in commands(page)]
IN_AN_ARRAY = {"${run[@]}", "${paths[@]}"}
RUNS = [line for line in LINES if line.words[1] == "scripts/run.sh" and not IN_AN_ARRAY & set(line.words)]
_, *OF_README = (line for line in RUNS if line.page.name == "README.md")  # the first is of a reward function


QUICKSTARTS = ("quickstart", "quickstart-grpo", "quickstart-web", "quickstart-smollm2")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The machine of a reader of the pages."""
    home = tmp_path_factory.mktemp("machine")
    (home / "vision" / "tiny").mkdir(parents=True)
    for name in QUICKSTARTS:
        (home / name / "base-model").mkdir(parents=True)
    tasks = [f"{name}/tasks" for name in QUICKSTARTS]
    for folder in ("home/user", "shared/data", "data", "vision", *tasks):
        (home / folder).mkdir(parents=True, exist_ok=True)
        for split in ("train", "test"):
            (home / folder / f"{split}.jsonl").write_text(TASK)
    rewards = "".join(f"def {name}(completion): return 1.0\n" for name in ("score", "format_reward"))
    (home / "home/user/my_rewards.py").write_text(rewards)
    (home / "home/user/my_agent.py").touch()
    agent_python = home / "home/user/agent_env/bin/python"
    agent_python.parent.mkdir(parents=True)
    agent_python.symlink_to(sys.executable)
    for name in ("pool.token", "env.token"):
        (home / name).write_text("a token of at least sixteen bytes\n")
        (home / name).chmod(0o600)
    make_certificate(home)
    folders = {home / "vision" / "tiny": VISION}
    folders |= dict.fromkeys((home / name / "base-model" for name in QUICKSTARTS), TEXT)
    model = save_tiny_model_folder(home / "tools" / "model", HERMES)
    (model / "config.json").write_text(json.dumps(MODELS["Qwen/Qwen3-8B"]))
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name, config in MODELS.items():
        folders[home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "0"] = config
    for folder, config in folders.items():
        save_tiny_model_folder(folder)
        (folder / "added_tokens.json").write_text('{"<think>": 259, "</think>": 260}')
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return home


def rest_of(words: tuple[str, ...]) -> list[str]:
    """Words that SAMPLE stands for beside these: none of their flags and keys."""
    kind = next((kind for kind in ("trainer=grpo", "--num-nodes") if kind in words), "--eval-interval")
    rest = list(next(known.words[2:] for known in OF_README if kind in known.words))
    for flag in {word for word in words if word.startswith("--")} & set(rest):
        at = rest.index(flag)
        has_value = at + 1 < len(rest) and not rest[at + 1].startswith("--")
        del rest[at : at + 1 + has_value]
    given = {word.partition("=")[0] for word in words if "=" in word}
    if "--worker" in words:
        given.add("--master")
    if "trainer.placement" in given:
        given.add("pool.local_engine")  # the README's comment says so
    return [word for word in rest if word.partition("=")[0] not in given]


def planned(line: Line, place: Path):
    """Return the plan of `run.sh` for it."""
    words = line.words[2:]
    if SAMPLE in words:
        words = (*rest_of(words), *(word for word in words if word != SAMPLE))
    for here, there in {
        "/home/user": place / "home/user", "/shared": place / "shared", "$PWD": place, "$HOME": place,
        "~/vision": place / "vision",
    }.items():  # fmt: skip
        words = tuple(word.replace(here, str(there)) for word in words)
    names_no_env = any(word.startswith("env_config.default_env=") for word in words)
    for split in ("train", "test"):
        task = TASK.replace(', "env": "math"', "") if names_no_env else TASK
        (place / "home/user" / f"{split}.jsonl").write_text(task)
    is_ours = ("data", "exp")
    words = tuple(
        str(place / word) if word in is_ours or word.startswith("quickstart") else word for word in words
    )
    environ = {"HOME": str(place), "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "OPENAI_API_KEY": "a key"}
    environ |= {"HF_HUB_CACHE": str(place / "hub"), "HF_HUB_OFFLINE": "1"}
    prepared = prepare([*(word for word in words if word != "--dry-run"), "--dry-run"], environ)
    assert "[commands]" in show(prepared, environ)
    return prepared


@pytest.fixture
def elsewhere(monkeypatch):
    """The pages' addresses are another machine's, and whatever listens here or there does not matter."""

    async def away(*_):
        raise TimeoutError  # its first episode waits for a server

    monkeypatch.setattr(OpenEnvEnvironment, "reset", away)
    monkeypatch.setattr(environments, "check_servers", lambda *_: None)
    monkeypatch.setattr(checks, "is_port_free", lambda *_: True)


@pytest.mark.usefixtures("own_policies")
@pytest.mark.parametrize("line", RUNS, ids=str)
def test_a_run_that_a_page_shows_would_start(line, place, elsewhere):
    if "--debug-mode" in line.words:
        pytest.skip("wants a server that runs")
    if {"--join", "--resume"} & set(line.words):
        wanted = "--num-nodes" if {"--join", "--num-nodes"} & set(line.words) else "--eval-interval"
        first = next(known for known in OF_README if wanted in known.words)
        write_plan(planned(first, place).plan, None)
    prepared = planned(line, place)
    assert not [note for note in prepared.notes if "changes nothing" in note]


def test_the_readme_shows_six_runs_and_names_a_trainable_streaming_model(place, elsewhere):
    assert len(OF_README) == 6
    (streaming,) = (line for line in OF_README if "trainer=grpo" in line.words)
    model = planned(streaming, place).machine.model
    assert model.config == TEXT


def headings(text: str) -> list[list[str]]:
    """The words of the two lines above the first row of a table of iterations."""
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[:2] == ["iteration", "version"])
    return [lines[at - 1].split(), lines[at].split()]


LLAMAFACTORY, GRPO = {"update/samples": 2, "update/candidates": 3}, {"update/samples": 2}
PARTS = {"test/reward_mean": 0.5, "train/reward_mean": 0.5}
"""Rewards that are not 0 and 1 alone, so that the table shows them beside success."""


@pytest.mark.parametrize(
    "page, update",
    [
        ("README.md", GRPO),
        ("docs/tutorials/first-run.md", LLAMAFACTORY | PARTS),
        ("docs/tutorials/real-model.md", GRPO),
        ("docs/tutorials/web-agent.md", LLAMAFACTORY),
        ("docs/tutorials/streaming.md", GRPO | PARTS),
    ],
)
def test_the_table_that_a_page_promises_has_the_headings_of_the_real_one(page, update):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(reward_table({1: update}))
    assert headings((PROJECT_ROOT / page).read_text()) == headings(console.export_text())


@pytest.mark.parametrize("agent", ["text", "web"])
@pytest.mark.parametrize("trainer", ["llamafactory", "grpo"])
def test_the_gpu_command_that_ends_the_quickstart_would_start(trainer, agent, place, elsewhere):
    script = (PROJECT_ROOT / "scripts" / "quickstart.sh").read_text()
    function = re.search(r"^show_result\(\) \{\n.*?^\}\n", script, re.MULTILINE | re.DOTALL)[0]
    variables = f"PYTHON_BIN=true MODEL=tiny AGENT={agent} TRAINER={trainer} OUT={place / 'quickstart'}"
    shown = subprocess.run(
        ["bash", "-euc", f"{variables}\n{function}\nshow_result"], capture_output=True, text=True, check=True
    )
    words = tuple(shlex.split(shown.stdout.partition("model:\n")[2].replace("\\\n", " ")))
    assert planned(Line(PROJECT_ROOT / "README.md", words), place).plan.config.is_streaming == (
        trainer == "grpo"
    )
