"""Which number published weights get: none ever stands for two contents."""

import pytest

from rl_agent.trainer.publish.feed import Content, choose_number

ONE, OTHER = "1" * 64, "2" * 64


@pytest.mark.parametrize(
    ("newest", "pool", "number", "unless"),
    [
        (None, None, 3, None),
        (None, Content(2, None), 3, None),  # the pool serves a model's folder
        (Content(2, ONE), Content(2, ONE), 3, None),
        (Content(2, ONE), None, 3, None),
        (None, Content(3, ONE), 4, None),  # the store was lost with its machine
        (None, Content(7, ONE), 8, None),
        (Content(3, ONE), Content(3, ONE), 4, ONE),  # started again: nothing to do if it is the same
        (Content(3, ONE), Content(2, None), 4, ONE),  # killed before it could tell the pool
        (Content(3, ONE), None, 4, ONE),
        (Content(3, ONE), Content(3, OTHER), 4, None),  # the pool would refuse it
        (Content(3, ONE), Content(9, OTHER), 10, None),
    ],
)
def test_the_number_of_version_3(newest, pool, number, unless):
    assert choose_number(3, newest, pool) == (number, unless)
