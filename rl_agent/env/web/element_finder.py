"""Finds elements of a page for a scripted agent.

A scripted agent asks the page where things are, which no model can, and then acts by the environment's own
grammar: what it says are the very actions that a model would have to say.
"""

from rl_agent.env.web.environment import WebEnvironment

_PLACE = """([selector, text, n]) => {
  const shown = [...document.querySelectorAll(selector)].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width && box.height && (text === null || one.textContent.trim() === text);
  });
  if (!shown.length) return null;
  const one = shown.at(n), box = one.getBoundingClientRect();
  const parts = [0.5, 0.25, 0.75, 0.1, 0.9];
  for (const down of parts) for (const right of parts) {
    const x = box.x + box.width * right, y = box.y + box.height * down;
    const hit = document.elementFromPoint(x, y);
    if (hit && (one === hit || one.contains(hit))) return [x, y];
  }
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""
_TEXTS = "(selector) => [...document.querySelectorAll(selector)].map(one => one.textContent.trim())"


class ElementFinder:
    """The scripted agent's knowledge of the page in front of it."""

    def __init__(self, environment: WebEnvironment) -> None:
        self._environment = environment

    async def at(self, selector: str, text: str | None = None, n: int = 0) -> str:
        """Return the coordinates of a place where a click meets an element, in its middle if it can be.

        Raises LookupError if it is not shown.
        """
        place = await self._environment.query(_PLACE, [selector, text, n])
        if place is None:
            raise LookupError(f"no {selector} {text or ''}")
        return "{} {}".format(*self._environment.page_input.point(place[0], place[1]))

    async def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of a selector."""
        texts: list[str] = await self._environment.query(_TEXTS, selector)
        return texts
