"""Finds the final answer in a response, in time linear in its length."""

import re

from rl_agent.chat.parse import enclosed

_TAGS = ("<answer>", "</answer>")
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def final_answer(response: str) -> str:
    """Return the content of the last `<answer>…</answer>`, else all text after the thinking; trimmed."""
    conclusion = _conclusion(response)
    begin, end = 0, len(conclusion)
    for begin, end in enclosed(conclusion, *_TAGS):  # noqa: B007 - the last one counts
        pass
    return conclusion[begin:end].strip()


def is_tagged(response: str) -> bool:
    """Return whether the final answer is marked by a tag, and so is the answer alone."""
    return next(enclosed(_conclusion(response), *_TAGS), None) is not None


def last_box(text: str) -> str | None:
    """Return the content of the last `\\boxed{…}` that is closed; None if there is none."""
    opened: list[int] = []
    last, end = 0, 0
    for match in _BRACES.finditer(text):
        brace = match[0]
        if brace[-1] == "{" and brace != "\\{":
            opened.append(match.end() if len(brace) > 1 else 0)
        elif brace == "}" and opened and (begin := opened.pop()) > last:  # the inner one of nested boxes
            last, end = begin, match.start()
    return text[last:end] if last else None


def _conclusion(response: str) -> str:
    return response.rpartition("</think>")[2]
