"""Names that only an installed library knows: a typo of one would else fail hours later, inside that library.

They are read from the library's source: importing it takes up to half a minute. Where a release keeps them in
another place nothing is known, and nothing is refused.
"""

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

from rl_agent.config import Config, TrainerConfig
from rl_agent.errors import ConfigError
from rl_agent.overrides.keys import did_you_mean

_EVERY_REPORT = {"all", "none"}


def check_trainer_names(trainer: TrainerConfig, template: str) -> None:
    """Refuse a template, a schedule or a recorder that LLaMA-Factory lacks. Raises ConfigError."""
    _check("model_config.template", template, templates(), "LLaMA-Factory")
    schedules = _names("transformers", "trainer_utils.py", lambda tree: _enum(tree, "SchedulerType"))
    _check("trainer.lr_scheduler_type", trainer.lr_scheduler_type, schedules, "transformers")
    reports = (trainer.report_to,) if isinstance(trainer.report_to, str) else trainer.report_to
    known = _names("transformers", "integrations/integration_utils.py", _recorders)
    for report in reports:
        _check("trainer.report_to", report, known | _EVERY_REPORT if known else known, "transformers")


def check_engine_names(config: Config) -> None:
    """Refuse a reasoning parser that vLLM lacks; a plugin may bring any. Raises ConfigError."""
    parser = config.model.reasoning_parser
    has_plugin = any(name.strip("-").replace("_", "-") == _PLUGIN for name in config.engine.extra_args)
    if parser is not None and not has_plugin:
        known = _names(
            "vllm", "reasoning/__init__.py", lambda tree: _keys(tree, "_REASONING_PARSERS_TO_REGISTER")
        )
        _check("model_config.reasoning_parser", parser, known, "vLLM")


_PLUGIN = "reasoning-parser-plugin"


def templates() -> frozenset[str]:
    """LLaMA-Factory's templates; empty where they are not known."""
    return _names("llamafactory", "data/template.py", _registered)


def _check(key: str, found: str, known: frozenset[str], library: str) -> None:
    if known and found not in known:
        near = did_you_mean(found, sorted(known)) or f"; it has {_some(known)}"
        raise ConfigError(f"{key}={found}: {library} has no such name{near}")


def _some(known: frozenset[str]) -> str:
    names = sorted(known)
    return ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:12])}, ... ({len(names)} in all)"


def _names(package: str, file: str, read: Callable[[ast.Module], Iterator[str]]) -> frozenset[str]:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    paths = [Path(folder, file) for folder in folders or ()]
    return next((frozenset(read(_tree(path))) for path in paths if path.is_file()), frozenset())


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def _registered(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "register_template"
        ):
            names = [word.value for word in node.keywords if word.arg == "name"]
            yield from _texts([*names, *node.args[:1]])


def _recorders(tree: ast.Module) -> Iterator[str]:
    return _keys(tree, "INTEGRATION_TO_CALLBACK")


def _keys(tree: ast.Module, name: str) -> Iterator[str]:
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(value, ast.Dict) and any(
            isinstance(one, ast.Name) and one.id == name for one in targets
        ):
            yield from _texts(key for key in value.keys if key is not None)


def _enum(tree: ast.Module, name: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _texts(part.value for part in node.body if isinstance(part, ast.Assign))


def _texts(nodes: "Iterator[ast.expr] | list[ast.expr]") -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
