"""The commands of the pages, as a bash that has no programs sees them.

Every block of commands is typed into a real bash whose PATH is empty: it expands variables, arrays, loops and
strings as for a reader, and each program that would start is recorded with its words instead.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import yaml

from rl_agent.paths import PROJECT_ROOT

PAGES = [PROJECT_ROOT / "README.md", *sorted((PROJECT_ROOT / "docs").rglob("*.md"))]
OF_COMMANDS = ("bash", "console")
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:\w+=\S+ )?(?:bash|python|sbatch|sky|docker|scripts/\S+\.\w+) [^`]+)`")
_COMMANDS_OF_A_PROVIDER = ("start", "stop", "list", "worker")
_RECORDER = """
exec 9>&1 >/dev/null # open in all that is started in the background: who reads it waits for them
command_not_found_handle() { printf '%s\\0' "$#" "$@" >&9; }
cat() { /bin/cat "$@" 2>&-; }
exec() { (($# == 0)) || "$@"; }
kill() { :; }
"""


class Typed(NamedTuple):
    page: Path
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.stem}: {' '.join(self.words)}"[:120]


def all_blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block, in the page's order."""
    return [(language, text) for language, text in _BLOCK.findall(page.read_text())]


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in all_blocks(page) if language in languages]


def sentences(page: Path) -> str:
    """The text of a page without its blocks, in one line."""
    return " ".join(_BLOCK.sub("", page.read_text()).split())


def scripts_of(page: Path) -> list[str]:
    """All that a reader may type: blocks, commands in sentences, and those that a provider's file has."""
    commands = ["\n".join(blocks(page, *OF_COMMANDS))]
    of_sentences = [re.sub(r"(\w)\|\w+", r"\1", text) for text in _INLINE.findall(sentences(page))]
    commands += [re.sub(r"^scripts/", "bash scripts/", text) for text in of_sentences]
    for text in blocks(page, "yaml"):
        values = yaml.safe_load(text)
        commands += [values[key] for key in _COMMANDS_OF_A_PROVIDER if key in values]
    return commands


def started_programs(script: str, folder: Path) -> list[tuple[str, ...]]:
    """The words of every program that `script` starts. `~`, `/home` and `/shared` lie in `folder`."""
    for name in ("home/user", "shared"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        script = script.replace(f"/{name}", f"{folder}/{name}")
    script = re.sub(r"[\w~.]*/bin/(?=\w)", "", script)
    script = re.sub(
        r"(?<!\$)\{(\w+)\}", r"\1", script.replace("{price}", "1").replace("{manager}", "http://host:1")
    )
    if not (folder / "scripts").exists():
        (folder / "scripts").symlink_to(PROJECT_ROOT / "scripts")
    done = subprocess.run(
        ["/bin/bash", "-c", _RECORDER + script],
        cwd=folder,
        env={"PATH": "/nonexistent", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert "syntax error" not in done.stderr, done.stderr
    fields = iter(done.stdout.split("\0")[:-1])
    commands = [tuple(next(fields).replace(str(folder), "") for _ in range(int(count))) for count in fields]
    return [words for words in commands if not words[0].startswith("…")]


def typed_commands(page: Path, folder: Path) -> list[Typed]:
    """Every program that the page's commands start, those behind `ssh HOST` and in containers included."""
    commands = started_programs("\n".join(f"(\n:\n{script}\n)" for script in scripts_of(page)), folder)
    for words in commands:
        if words[0] == "ssh" and " " in words[-1]:
            commands += started_programs(words[-1], folder)
    return [Typed(page, words) for words in sorted(set(commands))]  # some start at the same time
