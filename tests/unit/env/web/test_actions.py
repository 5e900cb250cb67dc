"""The grammar of web actions: what is read, and the one line that answers what is not."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.env.web.actions import GRAMMAR, MAX_TEXT, InvalidAction, WebAction, read_action
from rl_agent.env.web.tools import TOOLS


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("response", "meant"),
    [
        ("click 500 300", WebAction("click", (500, 300))),
        ("click(500, 300)", WebAction("click", (500, 300))),
        ("Action: click 0 1000", WebAction("click", (0, 1000))),
        ("I see a button.\nclick 10.5 20\n", WebAction("click", (10.5, 20))),
        ("click 1 1\nclick 2 2", WebAction("click", (2, 2))),
        ("`double_click 5 6`", WebAction("double_click", (5, 6))),
        ("drag 1 2 3 4", WebAction("drag", (1, 2), (3, 4))),
        ("type hello, world", WebAction("type", text="hello, world")),
        ('type "a quoted text"', WebAction("type", text="a quoted text")),
        ("key Control+A", WebAction("key", text="Control+A")),
        ("key ctrl+enter", WebAction("key", text="Control+Enter")),
        ("key +", WebAction("key", text="+")),
        ("key Control++", WebAction("key", text="Control++")),
        ("scroll down", WebAction("scroll", text="down")),
        ("scroll up 500 200", WebAction("scroll", (500, 200), text="up")),
        ("back", WebAction("back")),
        ("goto example.org/a", WebAction("goto", text="https://example.org/a")),
        ("goto localhost:80/a", WebAction("goto", text="https://localhost:80/a")),
        ("goto http://shop.test/", WebAction("goto", text="http://shop.test/")),
        ("wait", WebAction("wait", number=1)),
        ("wait 2.5", WebAction("wait", number=2.5)),
        ("wait 2 s", WebAction("wait", number=2)),
        ("answer 42", WebAction("answer", text="42")),
        (call("click", x=500, y=300), WebAction("click", (500, 300))),
        (call("left_click", coordinate=[500, 300]), WebAction("click", (500, 300))),
        (call("computer_use", action="left_click", coordinate=[5, 3]), WebAction("click", (5, 3))),
        (call("drag", x=1, y=2, to_x=3, to_y=4), WebAction("drag", (1, 2), (3, 4))),
        (
            call("type", text="a\nb", x=1, y=2, clear=True, enter=True),
            WebAction("type", (1, 2), text="a\nb", clear=True, enter=True),
        ),
        (call("key", keys=["ctrl", "c"]), WebAction("key", text="Control+c")),
        (call("navigate", url="example.org"), WebAction("goto", text="https://example.org")),
        (call("go_back"), WebAction("back")),
        (call("wait", time=3), WebAction("wait", number=3)),
        ('{"name": "click", "arguments": "{\\"x\\": 1, \\"y\\": 2}"}', WebAction("click", (1, 2))),
    ],
)
def test_an_action_is_read_from_a_line_or_from_a_tool_call(response, meant):
    assert read_action(response) == meant


@pytest.mark.parametrize(
    ("response", "line"),
    [
        ("", "not an action"),
        ("I would click it.", "not an action"),
        ("click 500", "click needs X Y"),
        ("click 500 300 7", "click needs X Y"),
        ("click 1001 5", "from 0 to 1000"),
        ("click -1 5", "from 0 to 1000"),
        ("click nan 5", "from 0 to 1000"),
        ("click a b", "from 0 to 1000"),
        ("type", "type needs text"),
        (f"type {'a' * (MAX_TEXT + 1)}", "characters"),
        ("key Power", "no key"),
        ("key Control+Alt+Shift+Meta+a", "no key"),
        ("scroll sideways", "use up, down"),
        ("wait 3600", "from 0 to 10"),
        ("goto file:///etc/passwd", "not an address of the web"),
        ("goto javascript:alert(1)", "not an address of the web"),
        ("goto view-source:http://a.b", "not an address of the web"),
        ("goto chrome://settings", "not an address of the web"),
        ("answer", "answer needs text"),
        ("{", "not JSON"),
        ("{}", "no tool"),
        (call("fly"), "no tool"),
        (call("click"), "x is missing"),
        (call("click", x=True, y=2), "from 0 to 1000"),
        (call("click", x=[1], y=2), "from 0 to 1000"),
        (call("click", x=1e999, y=2), "from 0 to 1000"),
        ('{"name": "click", "arguments": [1, 2]}', "not a JSON object"),
        ('{"name": "click", "arguments": "x"}', "not JSON"),
        ('{"name": ["click"]}', "no tool"),
        ('{"a":' * 100_000, "not JSON"),
    ],
)
def test_unreadable_actions_are_answered_by_one_line(response, line):
    with pytest.raises(InvalidAction, match=line) as raised:
        read_action(response)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["x", "y", "to_x", "to_y", "text", "key", "keys", "url", "direction", "seconds",
                          "coordinate", "action", "times", "clear"])  # fmt: skip


@given(
    st.text()
    | st.builds("{} {}".format, st.sampled_from(sorted(GRAMMAR)), st.text())
    | st.builds(
        lambda name, arguments: json.dumps({"name": name, "arguments": arguments}),
        st.sampled_from(sorted(GRAMMAR)) | ANYTHING,
        st.dictionaries(FIELDS, ANYTHING, max_size=5) | ANYTHING,
    )
)
def test_any_text_is_an_action_inside_the_page_or_one_line(response):
    try:
        action = read_action(response)
    except InvalidAction as error:
        assert len(str(error)) < 600 and "\n" not in str(error)
    else:
        assert action.name in GRAMMAR
        assert all(0 <= number <= 1000 for point in (action.at, action.to) if point for number in point)
        action.text.encode()


@pytest.mark.parametrize(
    "unit",
    ["click ", "`", "(", "action:", "\n", "click 1 1 \n x", '{"', "a+", "type \n", " ", "`" * 7000 + "1\n"],
)
def test_a_response_is_read_in_time_that_grows_with_its_length(unit):
    def seconds(size):
        response = unit * (size // len(unit))
        began = time.process_time()
        with contextlib.suppress(InvalidAction):
            read_action(response)
        return time.process_time() - began

    assert seconds(1_000_000) < 2.0


def test_every_action_of_the_grammar_is_a_tool_and_every_tool_is_read():
    assert [tool["function"]["name"] for tool in TOOLS] == list(GRAMMAR)
    values = {"integer": 1, "number": 1, "string": "a", "boolean": True}
    for tool in TOOLS:
        function = tool["function"]
        arguments = {
            name: schema.get("enum", [values[schema["type"]]])[0]
            for name, schema in function["parameters"]["properties"].items()
        }
        arguments |= {"url": "http://a.b"} if "url" in arguments else {}
        assert read_action(json.dumps({"name": function["name"], "arguments": arguments})).name
