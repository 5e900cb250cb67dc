"""The documentation says what the code does."""

import ast
import re
import shlex
import subprocess
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rl_agent.paths import PROJECT_ROOT, RunPaths
from tests.unit.docs.documented_blocks import blocks
from tests.unit.rollout.trajectories_made import make_header, make_trajectory, write_shard

PAGES = [PROJECT_ROOT / "README.md", *sorted((PROJECT_ROOT / "docs").rglob("*.md"))]


@pytest.mark.timeout(400)
def test_the_generated_reference_is_up_to_date():
    command = [sys.executable, "docs/generate_reference.py", "--check"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


ADDED = {
    word
    for page in PAGES
    for code in re.findall(r"`('?\+[\w.]+=[^`]*)`", page.read_text())
    for word in shlex.split(code)
}


@pytest.mark.parametrize("word", sorted(ADDED))
def test_a_word_that_adds_a_key_can_be_typed_for_hydra(word):
    assert OverridesParser.create().parse_override(word).get_value_string()


WALK = (PROJECT_ROOT / "docs" / "explanation" / "from-a-task-to-a-weight-version.md").read_text()
STOPS = sorted(set(re.findall(r"`([\w/]+\.(?:py|sh)): ([\w.]+)`", WALK)))


def functions_of(path: str) -> set[str]:
    """Names of a file's functions, methods as CLASS.METHOD."""
    if path.endswith(".sh"):
        return set(re.findall(r"^(\w+)\(\) \{", (PROJECT_ROOT / "scripts" / path).read_text(), re.MULTILINE))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = set()
    for node in ast.parse((PROJECT_ROOT / "rl_agent" / path).read_text()).body:
        if isinstance(node, functions):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, functions)}
    return names


@pytest.mark.parametrize(("path", "name"), STOPS)
def test_every_function_between_a_task_and_a_weight_version_exists(path, name):
    assert name in functions_of(path)


def test_the_python_example_prints_the_successful_episodes(tmp_path, capsys):
    paths = RunPaths(tmp_path)
    episodes = (make_trajectory(0, reward=1.0), make_trajectory(1, reward=0.0))
    write_shard(paths.shard("train", 1), make_header(), *episodes)
    (code,) = blocks(PROJECT_ROOT / "docs/README.md", "python")
    exec(code.replace("/home/user/exp1", str(tmp_path)), {})

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{episodes[0].key} 1.0 ")
