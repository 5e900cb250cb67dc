"""Where the final answer is in a response; found in time linear in its length."""

from rl_agent.agent.parse import enclosed

_TAGS = ("<answer>", "</answer>")


def final_answer(response: str) -> str:
    """What stands in the last `<answer>…</answer>`, else all that follows the thinking; trimmed."""
    conclusion = _conclusion(response)
    begin, end = 0, len(conclusion)
    for begin, end in enclosed(conclusion, *_TAGS):  # noqa: B007 - the last one counts
        pass
    return conclusion[begin:end].strip()


def is_tagged(response: str) -> bool:
    """Whether `final_answer` is the content of a tag, and so the bare answer."""
    return next(enclosed(_conclusion(response), *_TAGS), None) is not None


def _conclusion(response: str) -> str:
    return response.rpartition("</think>")[2]
