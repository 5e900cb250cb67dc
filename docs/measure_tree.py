"""Prints how large the tree is, beside an earlier commit, as docs/explanation/architecture.md shows it.

    python docs/measure_tree.py COMMIT [COMMIT …]      a column for each commit, and one for the files here

Lines are those of `wc -l`; a room is a folder of the package or a file beside folders, an arrow an import
between two rooms. For walks see `count_walks.py`: files, moves, climbs.
"""

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from count_walks import count_walks

ROOT = Path(__file__).resolve().parents[1]

NO_BEGINNING = re.compile(
    r"(after|also|and|as|at|before|behind|beside|between|but|by|during|for|from|how|if|in|into|not|of|on|once|only|or"
    r"|over|per|since|so|than|that|through|to|under|until|what|when|where|whether|which|while|who|whose|why|with"
    r"|within|without)\b",
    re.IGNORECASE,
)
"""A docstring that begins so has no subject."""


def docstrings(tree: ast.AST) -> list[str]:
    """Return the docstrings of modules, classes, functions and fields."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    values = [line.value for body in bodies for line in body if isinstance(line, ast.Expr)]
    constants = [value.value for value in values if isinstance(value, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def is_stump(docstring: str) -> bool:
    """Return whether a docstring begins with a preposition, a conjunction or a question word."""
    return NO_BEGINNING.match(docstring.lstrip()) is not None


def measure(root: Path) -> dict[str, str]:
    """Return what is counted of the checkout in a folder."""
    trees = [ast.parse(path.read_text()) for path in (root / "rl_agent").rglob("*.py")]
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    draw = [sys.executable, str(root / "docs" / "draw_packages.py"), "--rooms"]
    rooms = [line.split()[2:] for line in _output(draw).decode().splitlines()]
    reference = (root / "docs" / "reference" / "configuration.md").read_text()
    counted = {
        "lines of the package": _lines(root, "rl_agent", "*.py"),
        "lines of tests": _lines(root, "tests", "*.py"),
        "lines of benchmarks": _lines(root, "benchmarks", "*.py"),
        "lines of pages and README": _lines(root, "docs", "*.md") + _lines(root, ".", "README.md"),
        "files of the package": len(trees),
        "rooms": len(rooms),
        "arrows between rooms": sum(map(len, rooms)),
        "configuration keys": sum(line.startswith("| `") for line in reference.splitlines()),
        "docstrings without a subject": sum(is_stump(text) for tree in trees for text in docstrings(tree)),
    }
    lengths = f"{statistics.median(functions):.0f}, {max(functions)}"
    walks = {f"walk, {title}": counts for title, counts in count_walks(root / "rl_agent").items()}
    return (
        {name: f"{count:,}" for name, count in counted.items()}
        | {"function: median, longest": lengths}
        | walks
    )


def _lines(root: Path, folder: str, pattern: str) -> int:
    paths = (root / folder).glob(pattern) if folder == "." else (root / folder).rglob(pattern)
    return sum(path.read_bytes().count(b"\n") for path in paths)


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def measure_commit(commit: str) -> dict[str, str]:
    """Return what is counted of a commit."""
    archive = _output(["git", "-C", str(ROOT), "archive", commit])
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return measure(Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    commits = parser.parse_args().commits
    columns = [*map(measure_commit, commits), measure(ROOT)]
    print("| " + " | ".join(["", *(f"at {commit[:8]}" for commit in commits), "now"]) + " |")
    print("| --- |" + " --: |" * len(columns))
    for name in columns[0]:
        print("| " + " | ".join([name, *(column[name] for column in columns)]) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
