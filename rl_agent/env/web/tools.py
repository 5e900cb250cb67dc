"""The actions of a browser as the JSON schemas of tools, the way chat templates take them."""

from typing import Any

from rl_agent.env.web.actions import MAX_COORDINATE, MAX_SCROLLS, MAX_TEXT, MAX_WAIT_S

_X = {
    "type": "integer",
    "minimum": 0,
    "maximum": MAX_COORDINATE,
    "description": "From the left edge to the right.",
}
_Y = {
    "type": "integer",
    "minimum": 0,
    "maximum": MAX_COORDINATE,
    "description": "From the top edge to the bottom.",
}
_TEXT = {"type": "string", "maxLength": MAX_TEXT}


def _tool(name: str, description: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [
    _tool("click", "Click at a point of the screenshot.", ("x", "y"), x=_X, y=_Y),
    _tool("double_click", "Double-click at a point of the screenshot.", ("x", "y"), x=_X, y=_Y),
    _tool("hover", "Move the mouse to a point of the screenshot.", ("x", "y"), x=_X, y=_Y),
    _tool(
        "drag",
        "Press the mouse at one point and release it at another.",
        ("x", "y", "to_x", "to_y"),
        x=_X, y=_Y, to_x=_X, to_y=_Y,
    ),
    _tool(
        "type",
        "Type a text into the field that has the focus, or into the one at a point.",
        ("text",),
        text=_TEXT,
        x=_X, y=_Y,
        clear={"type": "boolean", "description": "Replace what is in the field."},
        enter={"type": "boolean", "description": "Press Enter after the text."},
    ),
    _tool("key", "Press a key, such as Enter, Tab, Backspace or Control+a.", ("key",), key=_TEXT),
    _tool(
        "scroll",
        "Turn the wheel, in the middle of the page or at a point.",
        ("direction",),
        direction={"type": "string", "enum": ["up", "down", "left", "right"]},
        x=_X, y=_Y,
        times={"type": "integer", "minimum": 1, "maximum": MAX_SCROLLS},
    ),
    _tool("back", "Go back to the page before."),
    _tool("goto", "Open an address.", ("url",), url=_TEXT),
    _tool("wait", "Wait for the page.", seconds={"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}),
    _tool("answer", "Give the final answer; this ends the task.", ("text",), text=_TEXT),
]  # fmt: skip
"""One tool for each action of `actions`."""
