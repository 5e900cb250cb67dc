"""Texts of tokens are asked of vLLM, and some of its answers can be read."""

import pytest

from rl_agent.pool.engines.answers import WrongAnswer
from rl_agent.pool.engines.token_texts import read_texts


def test_texts_are_those_of_the_choices_in_order():
    assert read_texts(b'{"choices": [{"text": "a", "index": 0}, {"text": ""}]}') == ("a", "")


@pytest.mark.parametrize("payload", [b"{}", b"no json", b'{"choices": [{}]}', b'{"choices": [{"text": 1}]}'])
def test_an_answer_without_texts_is_the_engines_fault(payload):
    with pytest.raises(WrongAnswer):
        read_texts(payload)
