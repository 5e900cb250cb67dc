"""Counts how a reader moves who follows five paths of the package from call to call.

`measure_tree.py` prints it. A walk enters a function, then each function that this one calls, in the order in
which the calls end, and none twice. A call is followed where the text says whom it is for: by an import,
`self`, or the annotation of an argument; the rest is left out. A climb is a move to a file that imports, at
some distance, more than the one before.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

Function = tuple[Path, str]
"""A file, and the name of a function in it, as `Holder.method` for a method."""

WALKS = {
    "task to shard": ("rollout/run.py:Rollouts.run", "rollout/run.py:run_rollout"),
    "shard to train.yaml": ("trainer/llamafactory/prepare.py:prepare", "update/prepare.py:prepare"),
    "request through the pool": ("pool/api/openai_api.py:OpenAiApi.completions",),
    "trained weights to a version": ("weights/publish/publish.py:Publisher.publish",),
    "command line to a plan": ("plan/make.py:prepare",),
}
"""The functions in which walks begin; the first of them that a commit has."""


class Calls:
    """The calls in a package."""

    def __init__(self, package: Path) -> None:
        self.package = package
        files = list(package.rglob("*.py"))
        graph = {file: {other for other, _ in self.imported(file).values()} - {file} for file in files}
        self.floors: dict[Path, int] = {}
        """The longest chain of imports that begins at a file."""
        for file in TopologicalSorter(graph).static_order():
            self.floors[file] = 1 + max((self.floors[other] for other in graph[file]), default=0)

    @cache  # noqa: B019 - there is one for a whole commit
    def definitions(self, file: Path) -> dict[str, ast.stmt]:
        """Return the functions and classes of a file, and the methods, by name."""
        named: dict[str, ast.stmt] = {}
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                named[node.name] = node
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(node, ast.ClassDef) and isinstance(
                    method, ast.FunctionDef | ast.AsyncFunctionDef
                ):
                    named[f"{node.name}.{method.name}"] = method
        return named

    @cache  # noqa: B019 - as above
    def imported(self, file: Path) -> dict[str, tuple[Path, str]]:
        """Return the file and the name behind each name that a file imports; no name for a module."""
        sources: dict[str, tuple[Path, str]] = {}
        for node in ast.walk(ast.parse(file.read_text())):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if isinstance(node, ast.ImportFrom) and module.partition(".")[0] == self.package.name:
                folder = self.package.parent.joinpath(*module.split("."))
                for alias in node.names:
                    places = {folder / f"{alias.name}.py": "", folder.with_suffix(".py"): alias.name}
                    for place, name in places.items():
                        if place.is_file():
                            sources.setdefault(alias.asname or alias.name, (place, name))
        return sources

    def called(self, function: Function) -> Iterator[Function]:
        """Yield the functions that one calls."""
        file, name = function
        node, holder = self.definitions(file)[name], name.rpartition(".")[0]
        kinds = {"self": holder, "cls": holder}
        for argument in ast.walk(node):
            if isinstance(argument, ast.arg) and isinstance(argument.annotation, ast.Name):
                kinds[argument.arg] = argument.annotation.id
        calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
        for call in sorted(calls, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0)):
            is_method = isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name)
            base = call.value.id if is_method else ""  # type: ignore[attr-defined]
            first = call.id if isinstance(call, ast.Name) else kinds.get(base, base)
            place, head = self.imported(file).get(first, (file, first))
            goal = ".".join(part for part in (head, call.attr if base else "") if part)  # type: ignore[attr-defined]
            if isinstance(self.definitions(place).get(goal), ast.FunctionDef | ast.AsyncFunctionDef):
                yield place, goal

    def walk(self, function: Function, entered: dict[Function, None]) -> dict[Function, None]:
        """Enter a function, and each that it calls, once."""
        entered[function] = None
        for other in self.called(function):
            if other not in entered:
                self.walk(other, entered)
        return entered


def count_walks(package: Path) -> dict[str, str]:
    """Return for each walk its files, its moves from one to another, and its climbs."""
    calls, counted = Calls(package), {}
    for title, places in WALKS.items():
        starts = [(package / file, name) for file, _, name in (place.partition(":") for place in places)]
        start = next(f for f in starts if f[0].is_file() and f[1] in calls.definitions(f[0]))
        files = [file for file, _ in calls.walk(start, {})]
        moves = [(before, after) for before, after in pairwise(files) if before != after]
        climbs = sum(calls.floors[after] > calls.floors[before] for before, after in moves)
        counted[title] = f"{len(set(files))}, {len(moves)}, {climbs}"
    return counted
