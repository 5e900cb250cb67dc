"""The sources of the container images: a build takes a daemon and ten minutes."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from rl_agent.paths import PROJECT_ROOT

DOCKERFILE = (PROJECT_ROOT / "docker" / "Dockerfile").read_text()
LOCK = (PROJECT_ROOT / "requirements" / "gpu.txt").read_text()
STUB = """#!/usr/bin/env bash
echo "$0 $*" >>"$CALLS"
case $* in
  "-m venv .venv") mkdir -p .venv/bin .venv/lib && cp "$0" .venv/bin/python && cp "$0" .venv/bin/uv ;;
esac
"""


def instructions(text: str = DOCKERFILE) -> list[tuple[str, str]]:
    """(name, arguments) of each, lines joined."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.split("\n"))]


def copied() -> list[tuple[list[str], str]]:
    """(sources, destination) of every COPY, in order."""
    words = [shlex.split(rest) for name, rest in instructions() if name == "COPY"]
    plain = [[word for word in each if not word.startswith("--")] for each in words]
    return [(each[:-1], each[-1]) for each in plain]


def test_everything_that_is_copied_is_there_and_in_the_build_context():
    ignored = (PROJECT_ROOT / ".dockerignore").read_text().splitlines()
    context = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    for sources, _ in copied():
        for source in sources:
            assert (PROJECT_ROOT / source).exists(), source
            assert source.split("/")[0] in context, source


def test_every_file_that_a_run_reads_is_in_the_image():
    destinations = {destination.rstrip("/") for _, destination in copied()}
    assert {"rl_agent", "configs", "scripts", "requirements", "data"} <= destinations


def test_the_cuda_of_the_base_is_that_of_the_lock():
    (base,) = re.findall(r"^ARG BASE=nvidia/cuda:([\d.]+)-devel-ubuntu24\.04$", DOCKERFILE, flags=re.M)
    locked = re.search(r"^nvidia-cuda-runtime==([\d.]+)", LOCK, flags=re.M)
    assert locked is not None
    assert base.split(".")[:2] == locked[1].split(".")[:2]


def test_every_package_of_the_locks_has_a_hash():
    for path in (PROJECT_ROOT / "requirements").glob("*pu.txt"):
        pins = path.read_text().replace("\\\n", "").splitlines()
        assert len(pins) > 200 and all("--hash=sha256:" in pin for pin in pins), path


def test_the_debian_packages_of_the_set_up_are_installed():
    setup = (PROJECT_ROOT / "scripts" / "shell_functions" / "setup_utils.sh").read_text()
    wanted = re.search(r"DEBIAN_PACKAGES=\(([^)]*)\)", setup)
    assert wanted is not None
    (install,) = [rest for name, rest in instructions() if name == "RUN" and "apt-get install" in rest]
    assert set(wanted[1].split()) | {"python3-venv", "tini"} <= set(install.split())


def test_nothing_runs_as_root():
    users = [rest for name, rest in instructions() if name == "USER"]
    assert users == ["10001"]  # a number: who forbids root asks for one


@pytest.mark.parametrize(("target", "script"), [("trainer", "run.sh"), ("rollout", "join_pool.sh")])
def test_each_image_is_a_command_of_this_project_under_a_reaping_init(target, script):
    stage = DOCKERFILE.partition(f"AS {target}\n")[2].partition("\nFROM ")[0]
    assert f'ENTRYPOINT ["tini", "--", "bash", "scripts/{script}"]' in stage
    assert (PROJECT_ROOT / "scripts" / script).exists()


@pytest.mark.parametrize("extra", ["gpu", "cpu"])
def test_the_set_up_needs_no_file_that_is_copied_later(extra, tmp_path):
    (position,) = [i for i, (_, rest) in enumerate(instructions()) if "ensure_environment" in rest]
    before = sum(name == "COPY" for name, _ in instructions()[:position])
    for sources, destination in copied()[:before]:
        for source in sources:
            target = tmp_path / destination / (Path(source).name if (PROJECT_ROOT / source).is_file() else "")
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (PROJECT_ROOT / source).is_dir() else shutil.copy
            copy(PROJECT_ROOT / source, target)
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(STUB)
    python.chmod(0o755)
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path / "home"), "EXTRA": extra}

    done = subprocess.run(
        ["/bin/bash", "-Eeuo", "pipefail", "-c", instructions()[position][1]],
        cwd=tmp_path, env=environment | {"CALLS": str(tmp_path / "calls")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text()
    assert f"--python .venv/bin/python --no-deps --require-hashes -r requirements/{extra}.txt" in calls
    assert list((tmp_path / ".venv").glob(f".rl-agent-{extra}-*"))
