"""Scripted agents of MiniWoB++ tasks: for each the shortest way that a person would take."""

import json
import re
from collections.abc import AsyncIterator, Callable

from rl_agent.env.web.element_finder import ElementFinder

Actions = AsyncIterator[str]
Oracle = Callable[[ElementFinder, str], Actions]
"""Says the actions that solve a task, from what it sees and the goal."""
_SUBMIT = "#subbtn, #submit, #area button.secondary-action"


def _quoted(goal: str) -> list[str]:
    return re.findall(r'"([^"]*)"', goal)


def _click(selector: str) -> Oracle:
    """Click the first element."""

    async def act(finder: ElementFinder, _goal: str) -> Actions:
        yield f"click {await finder.at(selector)}"

    return act


def _click_quoted(selector: str) -> Oracle:
    """Click the element whose text the goal quotes."""

    async def act(finder: ElementFinder, goal: str) -> Actions:
        yield f"click {await finder.at(selector, _quoted(goal)[0])}"

    return act


async def _click_named_button(finder: ElementFinder, goal: str) -> Actions:
    for name in re.findall("ONE|TWO", goal):
        yield f"click {await finder.at('#area button', name)}"


async def _click_tab(finder: ElementFinder, goal: str) -> Actions:
    yield f"click {await finder.at('#area ul a', goal.removeprefix('Click on ').rstrip('.'))}"


async def _check(finder: ElementFinder, goal: str) -> Actions:
    names = goal.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for name in names:
        if name != "nothing":
            yield f"click {await finder.at('#boxes label', name)}"
    yield f"click {await finder.at(_SUBMIT)}"


async def _click_color(finder: ElementFinder, goal: str) -> Actions:
    name = re.sub(r"Click on the (.*) colored box\.", r"\1", goal)
    yield f"click {await finder.at(f'#area [data-color={name}]')}"


async def _click_widget(finder: ElementFinder, goal: str) -> Actions:
    yield f"click {await finder.at(f'#area [data-type={_quoted(goal)[0]}]')}"


async def _expand(finder: ElementFinder, _goal: str) -> Actions:
    yield f"click {await finder.at('#area h3')}"
    yield "wait 1"
    yield f"click {await finder.at(_SUBMIT)}"


def _enter(*selectors: str) -> Oracle:
    """Type the quoted texts into the fields, the last one into all that are left, and submit."""

    async def act(finder: ElementFinder, goal: str) -> Actions:
        texts = _quoted(goal)
        if "upper case" in goal:
            texts = [text.upper() for text in texts]
        if "lower case" in goal:
            texts = [text.lower() for text in texts]
        for place, selector in enumerate(selectors):
            yield f"click {await finder.at(selector)}"
            yield f"type {texts[min(place, len(texts) - 1)]}"
        yield f"click {await finder.at(_SUBMIT)}"

    return act


async def _focus_nth(finder: ElementFinder, goal: str) -> Actions:
    number = int(re.findall(r"\d", goal)[0])
    yield f"click {await finder.at('#area input', n=number - 1)}"


async def _calculate(finder: ElementFinder, _goal: str) -> Actions:
    (problem,) = await finder.texts("#math-problem")
    left, sign, right = problem.removesuffix("=").split()
    first, second = int(left), int(right)
    yield f"click {await finder.at('#math-answer')}"
    yield f"type {first + second if sign == '+' else first - second if sign == '-' else first * second}"
    yield f"click {await finder.at(_SUBMIT)}"


async def _solve(finder: ElementFinder, _goal: str) -> Actions:
    (problem,) = await finder.texts("#math-problem")
    left, sign, right, _, total = problem.split()
    if left == "x":
        solution = int(total) - int(right) if sign == "+" else int(total) + int(right)
    else:
        solution = int(total) - int(left) if sign == "+" else int(left) - int(total)
    yield f"click {await finder.at('#math-answer')}"
    yield f"type {solution}"
    yield f"click {await finder.at(_SUBMIT)}"


async def _odd_or_even(finder: ElementFinder, _goal: str) -> Actions:
    for row, number in enumerate(await finder.texts(".display-number")):
        yield f"click {await finder.at('.even' if int(number) % 2 == 0 else '.odd', n=row)}"
    yield f"click {await finder.at(_SUBMIT)}"


def _answer_in(field: str, find: str) -> Oracle:
    """Type what the page shows, read in one of a few ways, and submit."""

    async def act(finder: ElementFinder, goal: str) -> Actions:
        if find == "table":
            cells = await finder.texts("#area td")
            name = re.sub(r"Enter the value of (.*) into the text.*", r"\1", goal)
            text = cells[cells.index(name) + 1]
        elif find == "word":
            words = (await finder.texts("#area p"))[0].split()
            text = re.sub(r"[^a-zA-Z]", "", words[int(re.findall(r"\d+", goal)[0]) - 1])
        else:
            text = "".join(await finder.texts("#captcha span"))
        yield f"click {await finder.at(field)}"
        yield f"type {text}"
        yield f"click {await finder.at(_SUBMIT)}"

    return act


async def _grid(finder: ElementFinder, goal: str) -> Actions:
    place = goal[goal.index("(") : goal.index(")") + 1]
    selector = f'[id="{place}"]'
    yield f"click {await finder.at(selector)}"


async def _identify(finder: ElementFinder, _goal: str) -> Actions:
    texts = await finder.texts("#area_svg text")
    kinds = {"rect": "rectangle", "circle": "circle", "polygon": "triangle"}
    shown = [kind for tag, kind in kinds.items() if await finder.texts(f"#area_svg {tag}")]
    kind = shown[0] if shown else "digit" if texts[0].isdigit() else "letter"
    yield f"click {await finder.at(f'#area-buttons [data-type={kind}]')}"


async def _guess(finder: ElementFinder, _goal: str) -> Actions:
    low, high = 0, 9
    while low <= high:
        middle = (low + high) // 2
        x, y = (await finder.at("#tt")).split()
        typed = {"text": str(middle), "x": int(x), "y": int(y), "clear": True}
        yield json.dumps({"name": "type", "arguments": typed})  # a line cannot replace what is in a field
        yield f"click {await finder.at(_SUBMIT)}"
        hint = " ".join(await finder.texts("#feedback div:not(.hide)"))
        low, high = (middle + 1, high) if "higher" in hint else (low, middle - 1)


async def _greatest(finder: ElementFinder, _goal: str) -> Actions:
    values: list[int] = []
    for place in range(3):
        yield f"click {await finder.at('.card', n=place)}"
        values.append(int((await finder.texts(".card:not(.hidden) .card-value"))[0]))
    yield f"click {await finder.at('.card', n=values.index(max(values)))}"
    yield f"click {await finder.at(_SUBMIT)}"


async def _spin(finder: ElementFinder, goal: str) -> Actions:
    number = int(re.findall(r"-?\d+", goal)[0])
    arrow = ".ui-spinner-up" if number > 0 else ".ui-spinner-down"
    for _ in range(abs(number)):
        yield f"click {await finder.at(arrow)}"
    yield f"click {await finder.at(_SUBMIT)}"


async def _drag_box(finder: ElementFinder, _goal: str) -> Actions:
    yield f"drag {await finder.at('#draggableSmall')} {await finder.at('#draggableLarge')}"
    yield f"click {await finder.at(_SUBMIT)}"


async def _choose(finder: ElementFinder, goal: str) -> Actions:
    name = re.sub(r"Select (.*) from the list.*", r"\1", goal)
    names = await finder.texts("#options option")
    yield "key Tab"
    for _ in range(names.index(name)):
        yield "key ArrowDown"
    yield f"click {await finder.at('#area button')}"


async def _generate(finder: ElementFinder, goal: str) -> Actions:
    limit = int((re.findall(r"\d+", goal) or ["0"])[0])
    for _ in range(30):
        yield f"click {await finder.at('#generate')}"
        number = int((await finder.texts("#display-number"))[0])
        if "less" in goal:
            is_right = number < limit
        elif "greater" in goal:
            is_right = number > limit
        else:
            is_right = number % 2 == ("odd" in goal)
        if is_right:
            yield f"click {await finder.at('#submit')}"
            return


ORACLES: dict[str, Oracle] = {
    "choose-list": _choose,
    "click-button": _click_quoted("#area button"),
    "click-button-sequence": _click_named_button,
    "click-checkboxes": _check,
    "click-checkboxes-transfer": _check,
    "click-collapsible": _expand,
    "click-collapsible-nodelay": _expand,
    "click-color": _click_color,
    "click-link": _click_quoted(".alink"),
    "click-option": _check,
    "click-tab": _click_tab,
    "click-tab-2-easy": _click_quoted(".alink"),
    "click-test": _click("#subbtn"),
    "click-test-2": _click("#subbtn"),
    "click-test-transfer": _click_named_button,
    "click-widget": _click_widget,
    "drag-box": _drag_box,
    "enter-password": _enter("#password", "#verify"),
    "enter-text": _enter("#tt"),
    "enter-text-2": _enter("#tt"),
    "enter-text-dynamic": _enter("#tt"),
    "find-greatest": _greatest,
    "find-word": _answer_in("#answer-input", "word"),
    "focus-text": _click("#tt"),
    "focus-text-2": _focus_nth,
    "generate-number": _generate,
    "grid-coordinate": _grid,
    "guess-number": _guess,
    "identify-shape": _identify,
    "login-user": _enter("#username", "#password"),
    "odd-or-even": _odd_or_even,
    "read-table": _answer_in("#tt", "table"),
    "simple-algebra": _solve,
    "simple-arithmetic": _calculate,
    "text-transform": _answer_in("#tt", "shown"),
    "unicode-test": _click_quoted("#area button"),
    "use-spinner": _spin,
}
"""The oracles by the name of the task."""
