"""Reads an agent's tool calls: which function with which arguments, or why not, in one line for the agent.

    response ─► without thoughts ─► no call: its text ──────────────────────────────► action
                      └► the first call ─► known? ─► fits its schema? ─► as JSON ───► action
                              │ unreadable    │ unknown     │ does not fit
                              └───────────────┴─────────────┴──────────────────────► problem

Only the first call of a response is carried out, for what an agent would do next depends on what it sees; it
is told of the others. Nothing here raises on what a model wrote, and all of it takes linear time: patterns in
schemas, which a tools' server may have sent, are matched by automata, and references to other documents are
refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_agent.chat.parse import Thought, parse_action
from rl_agent.chat.tool_formats import Schema, ToolCall, ToolFormat, UnreadableCall

_LONGEST = 300
"""Characters of a problem that an agent is told."""
MORE_CALLS = "Only the first tool call was carried out. Make one call at a time."


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """The action in a response, or the reason why it has none."""

    action: str
    """The environment is given this: the response without thoughts, or a call as JSON."""
    is_call: bool = False
    """The response makes a tool call, or tries to: what answers it has the role of a tool."""
    problem: str = ""
    """The reason that nothing is carried out; the environment is not asked then."""
    remark: str = ""
    """Told to the agent after what the environment says."""


class Toolbox:
    """The functions that one episode's agent may call, and the format in which its model writes calls."""

    def __init__(self, schemas: Sequence[Schema], written_as: ToolFormat) -> None:
        """`schemas` passed `check_schemas`."""
        self.schemas = tuple(schemas)
        self._format = written_as
        self._checks = CallChecks(schemas)

    def read(self, response: str, opened: Thought | None = None) -> ParsedAction:
        """Read a response, which may be anything; `opened` is the thought that its prompt began."""
        spoken = parse_action(response, opened)
        if not self._format.begins(spoken):
            return ParsedAction(spoken)
        try:
            call, rest = self._format.read(spoken, self._checks.schemas)
            action = action_of(call)
        except UnreadableCall as error:
            problem = f"This tool call cannot be read: {error}. Write {self._format.shape}"
            return ParsedAction(spoken, is_call=True, problem=_line(problem))
        if problem := self._checks.problem_with(call):
            return ParsedAction(action, is_call=True, problem=problem)
        return ParsedAction(action, is_call=True, remark=MORE_CALLS if rest else "")


@dataclass(slots=True)
class CallChecks:
    """Compares calls with the schemas of the functions there are."""

    given: Sequence[Schema]
    schemas: dict[str, Schema] = field(init=False)
    _validators: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.schemas = {schema["function"]["name"]: schema for schema in self.given}

    def problem_with(self, call: ToolCall) -> str:
        """Return why a call cannot be carried out, in one line; empty if it can."""
        if call.name not in self.schemas:
            return _line(f"There is no tool {call.name[:80]!r}; there are {', '.join(sorted(self.schemas))}")
        if call.name not in self._validators:
            self._validators[call.name] = _validator(self.schemas[call.name])
        error = next(iter(self._validators[call.name].iter_errors(call.arguments)), None)
        if error is None:
            return ""
        place = ".".join(map(str, error.instance_path))
        at = f" (at {place})" if place else ""
        return _line(f"The arguments of {call.name} do not fit{at}: {error.message}")


def check_schemas(schemas: object) -> tuple[Schema, ...]:
    """Return the schemas of functions. Raises ValueError that says in one line what is wrong with them."""
    if not isinstance(schemas, list | tuple) or not schemas:
        raise ValueError("no list of functions")
    names = set[str]()
    for schema in schemas:
        function = schema.get("function") if isinstance(schema, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f'not {{"type": "function", "function": {{"name": …}}}}: {schema!r:.200}')
        if name in names:
            raise ValueError(f"two functions are named {name!r}")
        names.add(name)
        try:
            json.dumps(schema, allow_nan=False).encode()
            _validator(schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"the schema of {name!r} cannot be used: {_line(str(error))}") from None
    return tuple(schemas)


def action_of(call: ToolCall) -> str:
    """Return what an environment is given: `{"name": …, "arguments": {…}}`. Raises UnreadableCall."""
    try:
        text = json.dumps(
            {"name": call.name, "arguments": call.arguments}, ensure_ascii=False, allow_nan=False
        )
        text.encode()
    except UnicodeError:
        raise UnreadableCall("it holds half a character") from None
    except ValueError:
        raise UnreadableCall("it holds a number that is too large") from None
    return text


def call_of(action: str) -> ToolCall | None:
    """Return the call that an environment was given; None for text. In time linear in it."""
    if not action.startswith("{"):
        return None
    try:
        written = json.loads(action)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict) or written.keys() != {"name", "arguments"}:
        return None
    name, arguments = written["name"], written["arguments"]
    return ToolCall(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _validator(schema: Schema) -> Any:
    import jsonschema_rs

    parameters = schema["function"].get("parameters") or {"type": "object"}
    return jsonschema_rs.Draft202012Validator(
        parameters, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
    )


def _refuse(uri: str) -> Any:
    raise ValueError(f"it refers to {uri[:80]}, and external schemas are not read")


def _line(text: str) -> str:
    """Return the text as one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
