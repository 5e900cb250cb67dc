"""The promises of DESIGN and HOUSE_STYLE about the code as a whole, held by reading it."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from rl_agent.paths import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "docs"))

import draw_packages
import measure_tree

PACKAGE = PROJECT_ROOT / "rl_agent"

SLOW_IMPORTS = {
    "torch",
    "transformers",
    "datasets",
    "pandas",
    "reasoning_gym",
    "wandb",
    "openai",
    "matplotlib",
    "vllm",
    "duckdb",
}
"""Imported inside the function that needs them: verbs start in every iteration."""

TENSOR_PACKAGES = {"trainer/grpo"}
"""Work on tensors from end to end, in processes that torchrun starts once a run: they may import torch and
transformers at module level, and nothing else may import them there."""

NOT_INSTALLED = {"liger_kernel", "mooncake", "nccl"}
"""Packages of GPU hosts and of clusters: imported inside functions, and not in the lock of a CPU host."""

PLUGINS = {"rl_agent/library/verl_rollout.py"}
"""Modules that another program loads in its own environment, which has what they import."""

MAX_LINES = 400

FEW_CHOICES = 5
"""A module that chooses at so few places decides nothing of its own: it is a record, a schema, a protocol or
a verb that calls one function, and is tested with what uses it."""

OF_NO_MODULE = {
    "test_architecture.py": "all modules at once: what may import what, and how large they are",
    "test_container_images.py": "docker/Dockerfile, and whether what it copies is there",
    "docs/test_pages.py": "all pages at once: links, words that add keys, the generated reference",
    "docs/test_documented_blocks.py": "every command that a page shows, followed to its parser",
    "docs/test_followed_blocks.py": "every command that a page shows, and which test types it",
    "docs/test_documented_commands.py": "every run that a page shows, planned",
}
"""Files of unit tests that no module and no page has the name of, and what they are about."""

PYTHON_FILES = sorted(PACKAGE.rglob("*.py"))
SHELL_FILES = sorted((PROJECT_ROOT / "scripts").rglob("*.sh"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name(path: Path) -> str:
    return str(path.relative_to(PROJECT_ROOT))


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def module_level(tree: ast.Module) -> ast.Module:
    """The statements that run on import; what only a type checker sees is left out."""

    def runs(node: ast.stmt) -> bool:
        return not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If)

    return ast.Module([node for node in tree.body if runs(node)], [])


@pytest.mark.parametrize("node_of", [draw_packages.package_of, draw_packages.room_of, ".".join])
def test_no_packages_no_rooms_and_no_files_import_each_other_in_a_circle(node_of):
    graph = draw_packages.graph(node_of)
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)  # CycleError names the circle


@pytest.mark.parametrize("package", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_a_package_imports_only_what_its_docstring_allows(package):
    """Three lines tell what a package does, what it may import, where to begin reading."""
    text = " ".join(
        (ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text())) or "").split()
    )
    allowed = re.search(r"May import: ([^.]*)\.", text)
    assert allowed and "Begin with `" in text
    imported = draw_packages.packages()[package]
    if "everything" not in allowed[1]:
        assert imported <= set(re.findall(r"\w+", allowed[1]))


def test_only_the_command_line_imports_the_page():
    assert [who for who, matches in draw_packages.packages().items() if "page" in matches] == ["cli"]


def test_a_class_name_means_one_thing():
    counts = Counter(
        node.name
        for path in PYTHON_FILES
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, n in counts.items() if n > 1] == []


@pytest.mark.parametrize("folder", ["rl_agent", "tests", "benchmarks", "scripts"])
def test_no_folder_of_code_holds_more_than_twenty_files(folder):
    files = [path for path in (PROJECT_ROOT / folder).rglob("*") if path.suffix in (".py", ".sh")]
    crowded = {name(each): n for each, n in Counter(path.parent for path in files).items() if n > 20}
    assert not crowded


def choices(tree: ast.AST) -> int:
    """Count the places at which a module chooses: if, while, match, except, a filter in a comprehension."""
    nodes = (ast.If, ast.IfExp, ast.While, ast.Match, ast.ExceptHandler)
    filters = (node.ifs for node in ast.walk(tree) if isinstance(node, ast.comprehension))
    return sum(isinstance(node, nodes) for node in ast.walk(tree)) + sum(map(len, filters))


def has_test_of_its_name(path: Path) -> bool:
    """Return whether a module has one, in the same room of the unit tests or in a room of the journeys.

    Journeys have coarser rooms, which carry the name of one of the module's folders; a verb may be tested
    wherever something calls it, by bash too.
    """
    rooms, tests = path.relative_to(PACKAGE).parent.parts, PROJECT_ROOT / "tests"
    file = f"test_{path.stem.strip('_')}.py"
    if tests.joinpath("unit", *rooms, file).exists():
        return True
    matches = [each.relative_to(tests) for each in tests.rglob(file)]
    return any(each.parts[0] != "unit" and {*each.parts} & {*rooms} for each in matches) or (
        rooms[:1] == ("cli",) and bool(matches)
    )


def test_a_module_that_decides_something_has_a_test_file_of_its_name():
    decides = [path for path in PYTHON_FILES if choices(parsed(path)) > FEW_CHOICES]
    deciding = [path for path in decides if path.name != "__main__.py"]
    without = [name(path) for path in deciding if not has_test_of_its_name(path)]
    assert not without, (
        "no tests/unit/…/test_NAME.py, nor a journey of that name (docs/explanation/architecture.md)"
    )


def names_in(room: Path) -> set[str]:
    """Return the names that tests of a room may have: its modules', or those of the pages of docs."""
    roots = (PACKAGE, PROJECT_ROOT, PROJECT_ROOT / "tests")
    modules = [each for root in roots for each in (root / room).glob("*.py")]
    pages = (PROJECT_ROOT / "docs").rglob("*.md") if room == Path("docs") else ()
    return {each.stem.strip("_").replace("-", "_") for each in (*modules, *pages)}


def test_each_unit_test_file_names_a_module_of_its_room_or_is_listed():
    """`test_<module>.py`, or `test_<module>_<aspect>.py`; the rooms of benchmarks and data count as well."""
    folder = PROJECT_ROOT / "tests" / "unit"
    of_no_module = set()
    for file in (each.relative_to(folder) for each in folder.rglob("test_*.py")):
        name = file.stem.removeprefix("test_") + "_"
        if not any(name.startswith(f"{module}_") for module in names_in(file.parent)):
            of_no_module.add(str(file))
    assert of_no_module == set(OF_NO_MODULE)


def slow_imports(path: Path) -> set[str]:
    imported = set(imported_modules(module_level(parsed(path))))
    slow = {module for module in imported if module.split(".")[0] in SLOW_IMPORTS}
    if any(PACKAGE / package in path.parents for package in TENSOR_PACKAGES):
        return {module for module in slow if module.split(".")[0] not in ("torch", "transformers")}
    tensors = tuple(f"rl_agent.{package}".replace("/", ".") for package in TENSOR_PACKAGES)
    return slow | {module for module in imported if module.startswith(tensors)}


def test_slow_libraries_are_not_imported_at_module_level():
    slow = {name(path): slow_imports(path) for path in PYTHON_FILES}
    assert {path for path, imported in slow.items() if imported} == PLUGINS


def declared_distributions() -> set[str]:
    """Return the names of the distributions that setup.py requires, normalised."""
    constants = (
        node.value for node in ast.walk(parsed(PROJECT_ROOT / "setup.py")) if isinstance(node, ast.Constant)
    )
    return {normalized(re.split(r"[\[<>=]", value)[0]) for value in constants if isinstance(value, str)}


def normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_every_imported_library_is_declared_in_setup_py():
    known, declared = packages_distributions(), declared_distributions()
    undeclared = {
        (name(path), library)
        for path in PYTHON_FILES
        if name(path) not in PLUGINS
        for library in {module.split(".")[0] for module in imported_modules(parsed(path))}
        if library not in sys.stdlib_module_names | NOT_INSTALLED | {"rl_agent"}
        and not declared & {normalized(each) for each in known.get(library, ())}
    }
    assert not undeclared


def test_what_collects_loads_no_library_of_an_extra_on_import():
    """Trainers are of the extra `train`; a function imports what another extra has where it needs it."""
    (collecting,) = (
        {normalized(re.split(r"[\[<>=]", value)[0]) for value in ast.literal_eval(node.value)}
        for node in parsed(PROJECT_ROOT / "setup.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COLLECTING"
    )
    known = packages_distributions()
    unexpected = {
        (name(path), library)
        for path in PYTHON_FILES
        for library in {module.split(".")[0] for module in imported_modules(module_level(parsed(path)))}
        if part_of(path) != "trainer"
        and name(path) not in PLUGINS
        and library not in sys.stdlib_module_names | {"rl_agent"}
        and not collecting & {normalized(each) for each in known.get(library, ())}
    }
    assert not unexpected


def test_files_stay_readable_in_one_sitting():
    lines = {name(path): len(path.read_text().splitlines()) for path in [*PYTHON_FILES, *SHELL_FILES]}
    assert not {path: count for path, count in lines.items() if count > MAX_LINES}


def test_nothing_unsafe_is_loaded():
    unsafe = {"pickle", "marshal", "shelve"}
    assert not [name(path) for path in PYTHON_FILES if unsafe & set(imported_modules(parsed(path)))]


def test_nothing_is_evaluated():
    called = {
        (name(path), node.func.id)
        for path in PYTHON_FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not {(path, function) for path, function in called if function in ("eval", "exec")}


def test_no_process_is_found_by_name_or_port():
    by_name = re.compile(r"\b(pkill|killall|fuser|pgrep)\b")
    assert not [name(path) for path in [*PYTHON_FILES, *SHELL_FILES] if by_name.search(path.read_text())]


def code_lines(path: Path) -> str:
    return "\n".join(line.split("#")[0] for line in path.read_text().splitlines())


def test_shell_never_evaluates_words():
    evaluates = re.compile(r"(^|[\s;&|(])eval\s")
    assert not [name(path) for path in SHELL_FILES if evaluates.search(code_lines(path))]


def test_no_deadline_of_the_shell_follows_a_clock_that_is_set():
    clocks = re.compile(r"\b(SECONDS|EPOCHSECONDS)\b")
    assert not [name(path) for path in SHELL_FILES if clocks.search(path.read_text())]


def test_docstrings_have_a_subject_or_begin_with_a_verb():
    stumps = [
        f"{name(path)}: {text.splitlines()[0]}"
        for folder in ("rl_agent", "tests", "benchmarks", "docs", "data", "scripts")
        for path in sorted((PROJECT_ROOT / folder).rglob("*.py"))
        for text in measure_tree.docstrings(ast.parse(path.read_text()))
        if measure_tree.is_stump(text)
    ]
    assert stumps == []


def test_names_of_tests_have_at_most_70_characters():
    files = sorted((PROJECT_ROOT / "tests").rglob("*.py"))
    defined = re.compile(r"def (test_\w{66,})")
    assert not {name(path): long for path in files if (long := defined.findall(path.read_text()))}


def test_lines_of_yaml_are_read_without_scrolling():
    files = sorted((PROJECT_ROOT / "configs").rglob("*.yaml"))
    assert [
        f"{name(file)}:{number}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > 110
    ] == []


def test_every_module_says_what_it_is_for():
    assert not [name(path) for path in PYTHON_FILES if not ast.get_docstring(parsed(path))]


def test_every_async_job_has_an_owner():
    offenders = [
        name(p) for p in PYTHON_FILES if re.search(r"asyncio\.(create_task|ensure_future)\(", p.read_text())
    ]
    assert offenders == []
