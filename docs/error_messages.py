"""The messages of errors, as the sources state them, each with its entry of docs/error_remedies.yaml.

A message is known by a stable part of it, the key of its entry. Where several keys are part of one message
the longest counts.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from rl_agent import errors as error_classes

ROOT = Path(__file__).resolve().parent.parent
REMEDIES = ROOT / "docs/error_remedies.yaml"

TASK_LINES = "A line of a task file"
SETTING_UP = "Setting up"
CLASSES = {name for name, _ in inspect.getmembers(error_classes, inspect.isclass)}
ABOUT_TASKS = (*("tasks/load.py", "tasks/openr1.py", "env/verifier_worker.py"), "env/math.py")
ABOUT_TASKS += ("env/gymnasium.py", "env/reasoning_gym.py")
"""Files of rl_agent whose ValueErrors a person reads behind the name of a task, its file and line."""
SHELL_REFUSAL = re.compile(r'(?:refuse|usage_error) "((?:\$\([^)]*\)|[^"\\]|\\.)*)"')
SHELL_VALUE = re.compile(r"\$\([^)]*\)|\$\{[^}]*\}|\$\w+")


@dataclass(frozen=True, slots=True)
class Message:
    """What one place says; `<name>` stands for what it names at run time."""

    kind: str
    """The class of the error, or the heading of what has none."""
    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Remedy:
    meaning: str
    action: str


@cache
def all_messages() -> tuple[Message, ...]:
    """Every message of the package, then those of the set-up scripts."""
    return (*_of_the_package(), *_of_the_data_scripts(), *_of_the_shell())


@cache
def remedies() -> dict[str, Remedy]:
    """Part of a message -> what it means and what to do."""
    return {part: Remedy(*entry) for part, entry in yaml.safe_load(REMEDIES.read_text()).items()}


@cache
def key_of(message: Message) -> str | None:
    """The longest key that is part of the message, else the key of its whole class, `Class:`.

    A key without a word of its own must be all of the message.
    """
    full, of_class = f"{message.kind}: {message.text}", f"{message.kind}:"
    parts = (
        part for part in remedies() if part in (full, message.text) or (_has_words(part) and part in full)
    )
    return max(parts, key=len, default=of_class if of_class in remedies() else None)


@cache
def _has_words(part: str) -> bool:
    words = re.sub(r"^\w+:|<\w+>", "", part)
    return re.search(r"\w", words) is not None


def _of_the_package() -> Iterator[Message]:
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "rl_agent").rglob("*.py"))}
    classes = _classes(trees.values())
    for path, tree in trees.items():
        where = str(path.relative_to(ROOT / "rl_agent"))
        kinds = dict(classes)
        if where in ABOUT_TASKS:
            kinds["ValueError"] = TASK_LINES
        for name, text in _calls(tree, kinds):
            if (
                name in CLASSES or name == "ValueError" or _has_words(text)
            ):  # else it only passes another's on
                yield Message(kinds[name], text, f"rl_agent/{where}")


def _classes(trees: Iterable[ast.Module]) -> dict[str, str]:
    """Each class of errors, and the class of `rl_agent.errors` under which its messages are listed."""
    found = {name: name for name in CLASSES}
    for tree in trees:
        for node in ast.walk(tree):
            bases = node.bases if isinstance(node, ast.ClassDef) and node.name not in CLASSES else ()
            listed = [base.id for base in bases if isinstance(base, ast.Name) and base.id in CLASSES]
            found |= {node.name: listed[0]} if isinstance(node, ast.ClassDef) and listed else {}
    return found


def _of_the_data_scripts() -> Iterator[Message]:
    for path in sorted((ROOT / "data").glob("*.py")):
        for _, text in _calls(ast.parse(path.read_text()), ["SystemExit"]):
            yield Message(SETTING_UP, text, f"data/{path.name}")


def _of_the_shell() -> Iterator[Message]:
    for path in sorted((ROOT / "scripts").rglob("*.sh")):
        for words in SHELL_REFUSAL.findall(path.read_text()):
            yield Message(SETTING_UP, SHELL_VALUE.sub(_shell_name, words), f"scripts/{path.name}")


def _shell_name(value: re.Match[str]) -> str:
    name = re.match(r"\$\{?(\w+)", value[0])
    return f"<{name[1].lower()}>" if name and not name[1].isdecimal() else "<value>"


def _calls(tree: ast.Module, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(class, message) of every call of one of the classes `names`."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            for text in _texts(node.args[0], functions) if node.args else ():
                yield node.func.id, " ".join(text.split())


def _texts(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    """The message; where a function of the module makes it, each that the function returns."""
    made_by = functions.get(node.func.id) if _is_plain_call(node) else None
    if made_by is None:
        yield template(node)
        return
    for part in ast.walk(made_by):
        if isinstance(part, ast.Return) and part.value is not None:
            yield from _texts(part.value, functions)


def _is_plain_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def template(node: ast.expr) -> str:
    """The text of a message, with `<name>` where it names something at run time."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _name_in(node.value)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return _name_in(node)


def _name_in(node: ast.expr) -> str:
    names = [
        part.attr if isinstance(part, ast.Attribute) else part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Name)
    ]
    return f"<{names[0].strip('_').lower()}>" if names else "<value>"
