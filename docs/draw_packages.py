"""Draws what imports what: the packages as a Mermaid graph, and every room with its files and imports.

    python docs/draw_packages.py              the packages
    python docs/draw_packages.py --rooms      every room: how many files it has, and the rooms that it imports

Lazy imports, and those for types alone, count like all others. The architecture test reads the same graph.
"""

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rl_agent"

Module = tuple[str, ...]
"""A module's dotted name below the package, in parts."""
Graph = dict[str, set[str]]
"""The imports of each node."""


@cache
def modules() -> dict[Module, Path]:
    """Every module of the package and its file."""
    return {_dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _dotted(path: Path) -> Module:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@cache
def imports_of(path: Path) -> frozenset[Module]:
    """Modules of the package that are imported anywhere in a file."""
    return frozenset(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.Module) -> Iterator[Module]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for imported in names:
            parts = tuple(imported.split("."))
            if parts[0] == PACKAGE.name:
                yield parts[1:] if parts[1:] in modules() else parts[1:-1]


def package_of(module: Module) -> str:
    """The top package that a module is of; a module at the top stands for itself."""
    return module[0]


def room_of(module: Module) -> str:
    """The folder that a module lies in; a module that lies beside folders stands for itself."""
    folder = module if modules()[module].name == "__init__.py" else module[:-1]
    has_rooms = any(len(other) > len(folder) + 1 and other[: len(folder)] == folder for other in modules())
    return ".".join(module if has_rooms else folder)


def graph(node_of: Callable[[Module], str]) -> Graph:
    """Return the nodes that each node imports, itself left out."""
    packages_of: Graph = {}
    for module, path in modules().items():
        if module:
            nodes = {node_of(imported) for imported in imports_of(path) if imported}
            packages_of.setdefault(node_of(module), set()).update(nodes - {node_of(module)})
    return packages_of


def file_counts() -> Counter[str]:
    """Count the Python files in each folder of the package itself, its rooms not counted."""
    folders = (path.parent.relative_to(PACKAGE).as_posix() for path in modules().values())
    return Counter(folder.replace("/", ".") for folder in folders)


def packages() -> Graph:
    """The packages that are folders, and which of these each imports."""
    names = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    return {name: imported & names for name, imported in graph(package_of).items() if name in names}


def reduced(nodes: Graph) -> Graph:
    """Leave out the arrows that follow from two others. Raises CycleError where there is a circle."""
    reached: Graph = {}
    for node in TopologicalSorter(nodes).static_order():
        reached[node] = nodes[node].union(*(reached[other] for other in nodes[node]))
    return {
        node: {target for target in direct if not any(target in reached[other] for other in direct)}
        for node, direct in nodes.items()
    }


def picture() -> str:
    """The packages as a Mermaid graph, without arrows that follow from others."""
    lines = ["```mermaid", "flowchart TD"]
    for name, direct in sorted(reduced(packages()).items()):
        lines += [f"  {name} --> {other}" for other in sorted(direct)]
    return "\n".join([*lines, "```"])


def rooms() -> str:
    """Every room, one per line: its files and the rooms that it imports."""
    counts, lines = file_counts(), []
    for room, imported in sorted(graph(room_of).items()):
        lines.append(f"{counts.get(room, 1):3}  {room:<26} {' '.join(sorted(imported))}".rstrip())
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rooms", action="store_true", help="every room instead of the packages")
    print(rooms() if parser.parse_args().rooms else picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
