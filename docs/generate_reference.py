"""Write configuration.md, commands.md and errors.md of docs/reference/ from the sources they describe.

    python docs/generate_reference.py            write them
    python docs/generate_reference.py --check    exit 1 if they are not up to date (a test calls this)

Defaults and comments come from `configs/*.yaml`, types from `rl_agent.config`, help texts from the verbs,
messages from the places that raise them.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "100"

from rl_agent import errors as error_classes  # noqa: E402
from rl_agent.cli.__main__ import verbs  # noqa: E402
from rl_agent.config import Config  # noqa: E402

GROUPS = {
    "model_config": ("model", "qwen3-instruct"),
    "engine": ("engine", "gpu"),
    "env_config": ("env", "default"),
    "rollout": ("rollout", "default"),
    "openai_config": ("judge", "default"),
    "trainer": ("trainer", "llamafactory"),
    "cluster": ("cluster", "default"),
}
"""Key in the configuration -> (folder under configs/, the file that states the defaults)."""

ENTRY = re.compile(r"^(?P<key>\w+):\s*(?P<value>.*?)\s*(?:\s#\s(?P<comment>.*))?$")


def entries(path: Path, *, nested_under: str = "") -> list[tuple[str, str, str]]:
    """(key, default, comment) of the scalar keys of a YAML file, or of one nested mapping of it."""
    rows, inside = [], not nested_under
    for line in path.read_text().splitlines():
        if nested_under and not line.startswith(" "):
            inside = line.startswith(f"{nested_under}:")
            continue
        match = ENTRY.match(line.strip() if nested_under else line)
        if inside and match and match["value"] and not match["value"].startswith("#"):
            rows.append((match["key"], match["value"], match["comment"] or ""))
    return rows


SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def limit(metadata: Any) -> str:
    """`Ge(ge=0)` as `≥ 0`."""
    return " ".join(
        f"{sign} {getattr(metadata, name)}" for name, sign in SIGNS.items() if hasattr(metadata, name)
    )


def type_name(section: Any, key: str) -> str:
    field = section.model_fields.get(key)
    if field is None:
        return ""
    text = str(field.annotation)
    text = re.sub(r"typing\.|<class '([\w.]+)'>", lambda m: m[1] or "", text)
    text = re.sub(r"Annotated\[(\w+), [^\]]*\]\)?\]?", r"\1", text)
    limits = ", ".join(limit(item) for item in field.metadata if not callable(item))
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)
    text = text.replace("Literal", "one of ").replace("NoneType", "None")
    return f"{text} ({limits})" if limits else text


def table(prefix: str, section: Any, rows: list[tuple[str, str, str]]) -> str:
    lines = ["| key | default | type | meaning |", "| --- | --- | --- | --- |"]
    for key, value, comment in rows:
        cells = [f"`{prefix}{key}`", f"`{value}`", type_name(section, key), comment]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def section_class(key: str) -> Any:
    name = "model" if key == "model_config" else key
    return Config.model_fields[name].annotation


def configuration() -> str:
    top = ROOT / "configs/config.yaml"
    parts = [
        "# Configuration",
        "Made by `python docs/generate_reference.py` from `configs/`. Every key can be overridden as "
        "`key=value` on the command line of `scripts/run.sh`; an unknown key is an error.",
        "## Top level",
        table("", Config, [row for row in entries(top) if row[0] not in ("defaults",)]),
    ]
    for key in ("policy_config", "wandb"):
        parts += [f"## {key}", table(f"{key}.", section_class(key), entries(top, nested_under=key))]
    for key, (folder, default) in GROUPS.items():
        options = sorted(path.stem for path in (ROOT / "configs" / folder).glob("*.yaml"))
        choices = ", ".join(f"`{option}`" for option in options)
        at = folder if folder == key else f"{folder}@{key}"
        parts += [
            f"## {key}",
            f"Group `{at}`, options {choices}; the defaults of `{default}`:",
            table(f"{key}.", section_class(key), entries(ROOT / f"configs/{folder}/{default}.yaml")),
        ]
        for option in options:
            if option != default:
                rows = [
                    row for row in entries(ROOT / f"configs/{folder}/{option}.yaml") if row[0] != "defaults"
                ]
                parts += [f"`{option}` differs in:", table(f"{key}.", section_class(key), rows)]
    return "\n\n".join(parts) + "\n"


def help_text(verb: str) -> str:
    module = importlib.import_module(f"rl_agent.cli.{verb.replace('-', '_')}")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        module.main(["--help"])
    return out.getvalue().strip()


def commands() -> str:
    parts = [
        "# Commands",
        "Made by `python docs/generate_reference.py` from the help texts. `python -m rl_agent.cli VERB` and "
        "`rl-agent VERB` are the same; `scripts/run.sh` calls most of them.",
    ]
    for verb in verbs():
        parts += [f"## {verb}", f"```text\n{help_text(verb)}\n```"]
    return "\n\n".join(parts) + "\n"


def template(node: ast.expr) -> str:
    """The text of a message, with `<name>` where it names something at run time."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        names = [
            n.attr if isinstance(n, ast.Attribute) else n.id
            for n in ast.walk(node.value)
            if hasattr(n, "ctx") and isinstance(n, ast.Attribute | ast.Name)
        ]
        return f"<{names[0].strip('_').lower()}>" if names else "<value>"
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return "<message>"


def messages() -> dict[str, list[tuple[str, str]]]:
    """Error class -> (message, module), for every `raise` of a class of `rl_agent.errors`."""
    classes = {name for name, _ in inspect.getmembers(error_classes, inspect.isclass)}
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "rl_agent").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
                continue
            if node.func.id in classes:
                found.setdefault(node.func.id, []).append((template(node.args[0]), module))
    return found


def errors() -> str:
    parts = [
        "# Error messages",
        "Made by `python docs/generate_reference.py` from the places that raise them; `<name>` stands for "
        "what a message names at run time. Every message says what is wrong and what would be right. What "
        "to do when a run failed: [failures](../how-to/when-something-fails.md).",
    ]
    for name, rows in sorted(messages().items()):
        error = getattr(error_classes, name)
        is_recorded = issubclass(error, error_classes.RolloutError)
        outcome = (
            "ends one episode, which is recorded with it" if is_recorded else f"exit code {error.exit_code}"
        )
        lines = ["| message | raised in |", "| --- | --- |"]
        lines += [f"| {message.replace('|', chr(92) + '|')} | `{module}` |" for message, module in rows]
        parts += [f"## {name}", f"{inspect.getdoc(error)} ({outcome})", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


PAGES = {"configuration.md": configuration, "commands.md": commands, "errors.md": errors}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page, render in PAGES.items():
        path, text = ROOT / "docs/reference" / page, render()
        if not path.exists() or path.read_text() != text:
            stale.append(page)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
