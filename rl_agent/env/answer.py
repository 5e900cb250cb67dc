"""Where the final answer is in a response."""

import re

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def final_answer(response: str) -> str:
    """What stands in the last `<answer>…</answer>`, else all that follows the thinking; trimmed."""
    conclusion = _conclusion(response)
    tagged = _TAGGED.findall(conclusion)
    return (tagged[-1] if tagged else conclusion).strip()


def is_tagged(response: str) -> bool:
    """Whether `final_answer` is the content of a tag, and so the bare answer."""
    return _TAGGED.search(_conclusion(response)) is not None


def _conclusion(response: str) -> str:
    return response.rpartition("</think>")[2]
