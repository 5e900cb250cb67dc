"""A response is read as what it says outside its thoughts, whatever marks its model thinks between."""

import pytest

from rl_agent.chat.parse import THOUGHTS, opened_thought, parse_action
from rl_agent.types import Observation
from tests.support.tiny_chat import TURN_END, tiny_chat
from tests.unit.chat.thinking_templates import CHATML_SPARED, CHATML_THINKING, DEEPSEEK_R1, THINKING


def read(template, response, shown="12 + 30?"):
    chat = tiny_chat(template)
    return parse_action(response, chat.opened_thought(chat.start(None, Observation(shown))))


@pytest.mark.parametrize(
    ("response", "action"),
    [
        (" 4\n", "4"),
        ("<think>2+2</think>\n\n4", "4"),
        ("2+2</think>4", "4"),
        ("<think>a</think>4<think>b</think>", "4"),
        ("<think>2+2", ""),
        ("4 <think>or", "4"),
        ("", ""),
        (TURN_END, TURN_END),
        ("<|channel|>final<|message|>4", "4"),
        ("I say [THINK] and <seed:think>x</seed:think>4", "I say"),
    ],
)
def test_an_action_is_the_response_without_its_thoughts(response, action):
    assert parse_action(response) == action


@pytest.mark.parametrize("model", THINKING.values(), ids=THINKING)
def test_a_cut_thought_is_no_action_whoever_wrote_its_beginning(model):
    assert read(model.template, model.begin + "I go 12 + 30 = 42") == ""
    assert read(model.template, model.begin) == ""


@pytest.mark.parametrize("model", THINKING.values(), ids=THINKING)
def test_an_ended_thought_leaves_the_action_alone(model):
    assert read(model.template, f"{model.begin}I go 12 + 30{model.end}\n\n42") == "42"
    assert read(model.template, f"{model.begin}{model.end}42") == "42"


@pytest.mark.parametrize("template", [CHATML_SPARED, THINKING["qwen3, smollm3"].template])
def test_a_response_that_thinks_nowhere_is_an_action(template):
    assert read(template, "I go 12 + 30 = 42") == "I go 12 + 30 = 42"


def test_a_mark_that_a_task_shows_opens_no_thought():
    assert read(THINKING["qwen3, smollm3"].template, "42", shown="What does <think>\n") == "42"


def test_a_later_prompt_opens_a_thought_as_its_own_end_says():
    chat = tiny_chat(
        DEEPSEEK_R1.replace("add_generation_prompt", "add_generation_prompt and not messages[2]")
    )
    first = chat.start(None, Observation("12 + 30?"))
    assert chat.opened_thought(first) == THOUGHTS[0]
    assert chat.opened_thought(chat.extend((), Observation("go on"))) is None


def test_a_prompt_opens_what_it_ends_with():
    assert opened_thought("<|im_start|>assistant\n<think>\n\n") == THOUGHTS[0]
    assert opened_thought("<think>\n\n</think>\n\n") is None
    assert opened_thought("") is None
    assert tiny_chat(CHATML_THINKING).opened_thought([]) is None
