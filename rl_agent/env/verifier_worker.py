"""The child process that scores answers: `python -m rl_agent.env.verifier_worker KIND PARENT_PID`.

Verifiers run libraries on text that a model wrote: they may compute for ever, use all memory or crash. Here
they can be killed. The parent (`rl_agent.env.verifier`) sends one JSON object a line on a
socket, file descriptor 0, and reads one line for each:

    {"ready": true}                          once the verifier is imported
    {"score": 1.0} | {"error": "KeyError…"}  an error is the task's fault; an answer that breaks the
                                             verifier scores 0

The process ends with its parent: at the end of the socket, and by the kernel's parent-death signal if it is
computing at that time.
"""

import json
import math
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from rl_agent.env.guard import signal_at_end_of_parent
from rl_agent.env.plain_answers import plain_reference, plain_score, says_same
from rl_agent.env.safe_eval import eval_literal, only_mathematics
from rl_agent.system.extras import missing_library

_MEMORY_LIMIT_BYTES = 8 << 30

_LATEX = [
    (re.compile(pattern), latex)
    for pattern, latex in (
        ("\N{MINUS SIGN}", "-"),
        ("∞", r"\\infty "),
        ("∪", r"\\cup "),
        (r"√\s*(\d+|[a-z])", r"\\sqrt{\1}"),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        ("²", "^2"),
        ("³", "^3"),
    )
]
_PROSE = re.compile(r"\n|(?<![\\A-Za-z])[A-Za-z]{2,}")
INEQUATION = re.compile(r"\\n(?:eq?|ot)(?![a-z])|≠|!=")

Score = Callable[[str, dict[str, Any]], float]
"""A function from the final answer and the request to a reward; it raises what the verifier raises."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference answer, read once."""

    text: str
    is_number: bool
    mathematics: list[Any]
    has_inequation: bool


def make_reasoning_gym() -> Score:
    """Load the scorers of reasoning_gym."""
    import reasoning_gym
    import sympy

    # Scorers look these names up in their module before the builtins.
    sympy.parse_expr = only_mathematics(sympy.parse_expr)
    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym."):
            vars(module)["eval"] = eval_literal
            if getattr(vars(module).get("parse_expr"), "__module__", "").startswith("sympy"):
                vars(module)["parse_expr"] = only_mathematics(vars(module)["parse_expr"])

    score_fn = cache(reasoning_gym.get_score_answer_fn)

    def score(answer: str, request: dict[str, Any]) -> float:
        entry = {"question": request["prompt"], "answer": request["answer"], "metadata": request["metadata"]}
        return float(score_fn(request["dataset"])(answer, entry))

    return score


def make_math() -> Score:
    """Load math-verify, for the answers that are neither plain numbers nor words."""
    from math_verify import parse, verify

    # The library's own time limits are signals: they end most hangs and leave this process usable.
    @cache
    def reference_of(text: str) -> Reference:
        is_number = plain_reference(text)[1] is not None
        mathematics = parse(as_latex(text), parsing_timeout=3)
        if not (is_number or mathematics):
            raise ValueError(f"math-verify finds no mathematics in the reference answer {text[:80]!r}")
        return Reference(text, is_number, mathematics, has_inequation=bool(INEQUATION.search(text)))

    def score(answer: str, request: dict[str, Any]) -> float:
        if (points := plain_score(answer, request)) is not None:
            return points
        reference, is_alone = reference_of(request["answer"]), request["is_boxed"] or request["is_tagged"]
        if not reference.is_number and says_same(reference.text, answer, is_alone=is_alone):
            return 1.0
        if INEQUATION.search(answer) and not reference.has_inequation:
            return 0.0
        is_formula = is_alone or not _PROSE.search(answer.strip())
        parsed = parse(as_latex(answer) if is_formula else answer, parsing_timeout=3)
        return float(verify(reference.mathematics, parsed, timeout_seconds=3))

    return score


def as_latex(text: str) -> str:
    """Return an answer as math-verify reads it: with LaTeX for other signs, between dollars."""
    for pattern, latex in _LATEX:
        text = pattern.sub(latex, text)
    return text if "$" in text or "\\(" in text else f"${text}$"


MAKERS: dict[str, Callable[[], Score]] = {"reasoning_gym": make_reasoning_gym, "math": make_math}


def answer_request(score: Score, request: dict[str, Any]) -> dict[str, Any]:
    """Score the response of a request and return the reply."""
    try:
        points = score(request["response"], request)
    except Exception:  # any library, any text
        return _reply_to_failure(score, request)
    return {"score": points if math.isfinite(points) else 0.0}


def _reply_to_failure(score: Score, request: dict[str, Any]) -> dict[str, Any]:
    """Blame the task if the verifier raises on the reference answer too, else score the response 0."""
    try:
        score(request["answer"], request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"score": 0.0}


def bind_to_parent(parent_pid: int) -> None:
    """Ask the kernel to end this process with its parent, and bound its memory."""
    signal_at_end_of_parent(signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        sys.exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))


def main(kind: str, parent_pid: str) -> None:
    """Answer requests until the socket is closed."""
    bind_to_parent(int(parent_pid))
    try:
        score = MAKERS[kind]()
    except ModuleNotFoundError as error:
        sys.exit(f"{kind} verifier: {missing_library(error) or error}")
    hung_up = suppress(ConnectionResetError, BrokenPipeError)  # in the middle of a question
    with hung_up, socket.socket(fileno=0) as connection, connection.makefile("rwb") as stream:
        _send(stream, {"ready": True})
        for line in stream:
            _send(stream, answer_request(score, json.loads(line)))


def _send(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
