"""Write the pages of docs/reference/ that are made from what they describe.

    python docs/generate_reference.py            write them
    python docs/generate_reference.py --check    exit 1 if they are not up to date (a test calls this)

Defaults and comments come from `configs/*.yaml`, types from `rl_agent.config.plan`, help texts from the
verbs, metrics from `rl_agent.monitor.catalog`, the fields of requests to a pool from
`rl_agent.pool.api.openai_schemas`.
"""

import argparse
import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "100"

from rl_agent import errors as error_classes  # noqa: E402
from rl_agent.chat.responses_call import ResponsesCall  # noqa: E402
from rl_agent.cli.__main__ import call, verbs  # noqa: E402
from rl_agent.config.overrides import elsewhere  # noqa: E402
from rl_agent.config.overrides.keys import kinds_of, sections_of  # noqa: E402
from rl_agent.config.plan import Config  # noqa: E402
from rl_agent.config.sections.base import MAX_COUNT, MAX_SECONDS  # noqa: E402
from rl_agent.engine.packed import PARAMETERS  # noqa: E402
from rl_agent.monitor import catalog  # noqa: E402
from rl_agent.pool.api import openai_schemas  # noqa: E402
from rl_agent.pool.scheduler.sampling import OF_THE_POOL  # noqa: E402
from rl_agent.simulation.config import WHAT_IF  # noqa: E402

GROUPS = (
    ("model_config", "model", "qwen3-instruct"),
    ("context", "context", "window"),
    ("context", "context", "summary"),
    ("context", "context", "everything"),
    ("engine", "engine", "gpu"),
    ("env_config", "env", "default"),
    ("rollout", "rollout", "default"),
    ("openai_config", "judge", "default"),
    ("trainer", "trainer", "llamafactory"),
    ("trainer", "trainer", "grpo"),
    ("weights", "weights", "restart"),
    ("cluster", "cluster", "default"),
    ("pool", "pool", "elastic"),
)
"""(key in the configuration, folder under configs/, the file that states the defaults)."""

RARELY = "# rarely changed"
"""Divides what most users set in a file or a section of it, which stands first, from the rest."""
ENTRY = re.compile(r"^(?P<key>\w+):\s*(?P<value>.*?)\s*(?:\s#\s(?P<comment>.*))?$")


def entries(path: Path, *, nested_under: str = "") -> list[tuple[str, str, str]]:
    """(key, default, comment) of the keys of a YAML file, or of one nested mapping of it, in their order.

    A key that holds a mapping has no default. The line `RARELY` is a row without a key.
    """
    rows, inside, indent = [], not nested_under, "  " if nested_under else ""
    for line in whole_entries(path.read_text()):
        if nested_under and not line.startswith(" "):
            inside = line.startswith(f"{nested_under}:")
            continue
        match = ENTRY.match(line.removeprefix(indent))
        if inside and match:
            rows.append((match["key"], match["value"].partition("#")[0], match["comment"] or ""))
        elif inside and line == indent + RARELY:
            rows.append(("", "", ""))
    return rows


def whole_entries(text: str) -> list[str]:
    """Return the lines of a YAML file, with folded values and comments that go on below joined to theirs."""
    text = re.sub(r"\n {12,}# ", " ", text)
    folded = re.compile(r"^(?P<key>\w+:) >-(?P<comment>.*)\n(?P<value>(?:  .*\n?)+)", re.MULTILINE)
    text = folded.sub(lambda m: f"{m['key']} {' '.join(m['value'].split())}{m['comment']}\n", text)
    return text.splitlines()


SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def limit(metadata: Any) -> str:
    """`Ge(ge=0)` as `≥ 0`; what holds for all counts and waits is said once, at the top of the page."""
    bounds = ((sign, getattr(metadata, name, None)) for name, sign in SIGNS.items())
    return " ".join(f"{sign} {at}" for sign, at in bounds if at not in (None, MAX_COUNT, MAX_SECONDS))


def type_name(section: Any, key: str) -> str:
    field = section.model_fields.get(key)
    if field is None:
        return ""
    text = str(field.annotation)
    text = re.sub(r"typing\.|<class '([\w.]+)'>", lambda m: m[1] or "", text)
    text = re.sub(r"Annotated\[([\w.]+(?:\[str, Any\])?), AfterValidator\([^)]*\)\]", r"\1", text)
    text = re.sub(r"Annotated\[(\w+), [^\]]*\]\)?\]?", r"\1", text)
    limits = ", ".join(filter(None, (limit(item) for item in field.metadata if not callable(item))))
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)
    text = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)
    text = text.replace("Literal", "one of ").replace("NoneType", "None")
    return f"{text} ({limits})" if limits else text


HEAD = ["| key | default | type | meaning |", "| --- | --- | --- | --- |"]


def table(prefix: str, section: Any, rows: list[tuple[str, str, str]]) -> str:
    return "\n".join([*HEAD, *lines_of(prefix, section, rows)])


def lines_of(prefix: str, section: Any, rows: list[tuple[str, str, str]]) -> list[str]:
    lines = []
    for key, value, comment in rows:
        if not key:
            place = f" in `{prefix[:-1]}`" if prefix else ""
            lines.append(f"| *rarely changed{place}* | | | |")
        if not value:
            continue
        cells = [f"`{prefix}{key}`", f"`{value}`", type_name(section, key), comment]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def section_class(key: str) -> Any:
    name = "model" if key == "model_config" else key
    return Config.model_fields[name].annotation


def configuration() -> str:
    top = ROOT / "configs/config.yaml"
    parts = [
        "# Configuration",
        "Made by `python docs/generate_reference.py` from `configs/`. Every key can be overridden as "
        "`key=value` on the command line of `scripts/run.sh`; an unknown key is an error. A number must be "
        f"finite, an `int` at most {MAX_COUNT} and a wait (`…_s`) at most {MAX_SECONDS:g} seconds.",
        "## Top level",
        table("", Config, [row for row in entries(top) if row[0] not in ("defaults",)]),
    ]
    for key in ("policy_config", "page", "wandb"):
        parts += [f"## {key}", table(f"{key}.", section_class(key), entries(top, nested_under=key))]
    for key, folder, default in GROUPS:
        options = sorted(path.stem for path in (ROOT / "configs" / folder).glob("*.yaml"))
        choices = ", ".join(f"`{option}`" for option in options)
        at = folder if folder == key else f"{folder}@{key}"
        is_choice = bool(kinds_of(key))
        parts += [
            f"## {key}, {default}" if is_choice else f"## {key}",
            f"Group `{at}`, options {choices}; the defaults of `{default}`:",
            table_of_option(key, folder, default, default),
        ]
        for option in options:
            if option != default and (option.startswith(default) or not is_choice):
                parts += [f"`{option}` differs in:", table_of_option(key, folder, option, default)]
    parts += [
        "## what-if",
        "Not of a run: the `KEY=VALUE` words of `python -m rl_agent.cli what-if`.",
        table("", WHAT_IF.model, entries(ROOT / "configs" / f"{WHAT_IF.file}.yaml")),
    ]
    return "\n\n".join(parts) + "\n"


def table_of_option(key: str, folder: str, option: str, default: str) -> str:
    """The keys of one file and of its sections, in their order; `default` names a kind where there are."""
    path = ROOT / f"configs/{folder}/{option}.yaml"
    section = kinds_of(key).get(default) or section_class(key)
    lines = list(HEAD)
    for row in entries(path):
        name = row[0]
        field = section.model_fields.get(name)
        lines += lines_of(f"{key}.", section, [row])
        for nested in sections_of(field.annotation) if field else ():
            lines += lines_of(f"{key}.{name}.", nested, entries(path, nested_under=name))
    return "\n".join(lines)


def help_text(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        call([*words, "--help"])
    return out.getvalue().strip()


def commands() -> str:
    parts = [
        "# Commands",
        "Made by `python docs/generate_reference.py` from the help texts. `python -m rl_agent.cli VERB` and "
        "`rl-agent VERB` are the same; `scripts/run.sh` calls most of them.",
    ]
    for verb in verbs():
        shown = "Its flags are those of `plan`." if verb == "run" else f"```text\n{help_text(verb)}\n```"
        parts += [f"## {verb}", shown]
        if verb == "pool":
            parts += ["## pool scale", f"```text\n{help_text('pool', 'scale')}\n```"]
    return "\n\n".join(parts) + "\n"


def exit_codes() -> str:
    lines = ["| code | what it stands for | what to do |", "| --: | --- | --- |"]
    lines += [f"| {code} | {what} | {then} |" for code, (what, then) in error_classes.EXIT_CODES.items()]
    parts = [
        "# Exit codes",
        "Made by `python docs/generate_reference.py` from `rl_agent/errors.py`. `scripts/run.sh`, the "
        "scripts beside it and every verb end with one of these, and with one line that says why. "
        "A script that queues jobs again does so after 69, 75, "
        "129, 130 and 143, perhaps after 124, and never after 2 or 78.",
        "\n".join(lines),
    ]
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    parts = [
        "# Metrics",
        "Made by `python docs/generate_reference.py` from `rl_agent/monitor/catalog.py`. A run appends them "
        "to `metrics.jsonl` in its log path, one JSON object per line, and wandb records the same numbers "
        "under the same names; those of steps over `update_step`, all others over `iteration`. `<…>` stands "
        "for one part of a name. A number that is not known, or not finite, is left out.",
    ]
    for chapter in catalog.CHAPTERS:
        lines = ["| metric | unit | what it says |", "| --- | --- | --- |"]
        lines += [f"| `{metric.name}` | {metric.unit} | {metric.meaning} |" for metric in chapter.metrics]
        parts += [f"## {chapter.title}", chapter.words, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def openai_api() -> str:
    refused = ", ".join(
        f"`{name}`" for name in sorted(OF_THE_POOL - openai_schemas.CompletionCall.model_fields.keys())
    )
    with_images = ", ".join(f"`{name}`" for name in sorted(PARAMETERS))
    parts = [
        "# The pool's OpenAI API",
        "Made by `python docs/generate_reference.py` from `rl_agent/pool/api/openai_schemas.py` and "
        "`rl_agent/chat/responses_call.py`. "
        "`/v1/completions` and `/v1/chat/completions` of a pool answer as the server of vLLM does. The "
        "tables hold the fields that the pool reads itself; a wrong value is a 400 whose `param` names the "
        "field. All other fields go to an engine as they are, which judges them: what it refuses is a 400 in "
        "its own words. A response that moves to another engine is continued where the parameters allow it "
        "(`CONTINUABLE` in `rl_agent/pool/scheduler/migration.py`), and else begins anew; in neither case is "
        "a token shown twice. What differs from one server:",
        "- `system_fingerprint` is `null`, as a response may come of several engines, and so is "
        "`usage.completion_tokens_details`.\n"
        "- An event of a stream has as many tokens as had come. In a streamed chat tool calls come whole, "
        "and one that was cut off is text.\n"
        "- A failure before the first event of a stream is an answer with its status.\n"
        f"- What the pool cannot hand on is a 400: {refused} in a completion, alternatives in `logprobs`, "
        "and in a chat media other than images. `echo` and `prompt_logprobs` are of a prompt, which each "
        "engine that a response moves to reads anew; of a token the pool keeps the one that was sampled.\n"
        "- A grammar (`response_format`, `structured_outputs`, in a chat also a tool that is `strict` or "
        "forced by `tool_choice`) has a state that no other engine can take over: a response under one "
        "begins anew where it moves, which counts its tokens as `recomputed`, and a stream shows it when it "
        "has ended. Its `logprobs` are of the tokens that the grammar allows, as vLLM masks the others "
        "first: more likely than under the model alone, so they are not for training.\n"
        "- Images of a chat are `data:` URLs of base64, 64 MiB in all with the rest of the body; no address "
        "is followed. A chat with images takes no grammar, and these sampling parameters alone: "
        f"{with_images}. With `logprobs` half a character is named `\ufffd`.\n"
        "- `/v1/responses` is OpenAI's Responses API, whole and in events: a call is read as the chat that "
        "it stands for and answered by the same way, so all of the above holds, and every field that is not "
        "in its table is the chat's. Nothing is kept, whatever `store` says: an answer says `false`, and "
        "`previous_response_id`, `conversation`, `background` and `prompt` are a 400, as is a tool that is "
        "no function. A call of a function comes whole, in one piece of its arguments; `cached_tokens` and "
        "`reasoning_tokens` are 0, as they are not known. A response that was cut is `incomplete` in the "
        "event `response.completed`, as vLLM has it.",
    ]
    common = openai_schemas.OpenAiCall.model_fields
    tables = {
        "Completions and chats": common,
        "/v1/completions": openai_schemas.CompletionCall.model_fields,
        "/v1/chat/completions": openai_schemas.ChatCall.model_fields,
        "/v1/responses": ResponsesCall.model_fields,
    }
    for title, fields in tables.items():
        lines = ["| field | without it | |", "| --- | --- | --- |"]
        lines += [
            f"| `{name}` | {_shown(field)} | {field.description or ''} |"
            for name, field in fields.items()
            if fields is common or name not in common
        ]
        parts += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _shown(field: Any) -> str:
    return "" if field.is_required() else f"`{json.dumps(field.default)}`"


def keys_of_others() -> str:
    """Return the tables of keys of other projects, from what an unknown key is answered with."""
    titles = {
        "TRL": ("trl grpo", elsewhere.TRL),
        "verl": ("ppo_trainer", elsewhere.VERL),
        "prime-rl": ("rl.toml", elsewhere.PRIME_RL),
        "WebGym": ("Hydra tree", elsewhere.WEBGYM),
        "PolyRL": ("beside verl's", elsewhere.POLYRL),
    }
    origin = "Made by `python docs/generate_reference.py` from `rl_agent/config/overrides/elsewhere.py`."
    lines = ["# Keys of others", "", origin, ""]
    lines += [
        "What a key of another project is here; typed on the command line, it is answered with the same."
    ]
    for project, (source, table) in titles.items():
        lines += ["", f"## {project}", "", f"| {source} | here |", "| --- | --- |"]
        lines += [f"| `{theirs}` | `{ours}` |" for theirs, ours in table.items()]
    lines += ["", "## Not needed", "", "| ends with | why none stands for it |", "| --- | --- |"]
    lines += [f"| `{theirs}` | {reason} |" for theirs, reason in elsewhere.NOT_NEEDED.items()]
    lines += ["", "## Not offered", "", "| ends with | what is done instead |", "| --- | --- |"]
    lines += [f"| `{theirs}` | {reason} |" for theirs, reason in elsewhere.NOT_OFFERED.items()]
    return "\n".join(lines) + "\n"


PAGES = {
    "keys-of-others.md": keys_of_others,
    "configuration.md": configuration,
    "commands.md": commands,
    "exit-codes.md": exit_codes,
    "metrics.md": metrics,
    "openai-api.md": openai_api,
}


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
