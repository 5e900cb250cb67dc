"""Finds the final answer in a response, in time linear in its length."""

from rl_agent.agent.parse import enclosed

_TAGS = ("<answer>", "</answer>")


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


def _conclusion(response: str) -> str:
    return response.rpartition("</think>")[2]
