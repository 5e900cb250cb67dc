"""Published weights: no number ever stands for two contents, and no answer ends their announcements."""

from types import SimpleNamespace

import pytest

from rl_agent.errors import DeadlineError
from rl_agent.trainer.grpo.publish.feed import Announcer, Content, choose_number

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


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"publisher": None},
        {"publisher": float("inf")},
        {"publisher": "x"},
        {"publisher": 3, "weight_version": None, "weights_digest": ""},
        {"publisher": 3, "weight_version": float("inf"), "weights_digest": ""},
    ],
)
def test_a_stranger_at_the_managers_address_does_not_end_the_announcements(answer):
    manager = SimpleNamespace(url="http://127.0.0.1:1", ask=lambda *words: answer)
    manifest = SimpleNamespace(digest=ONE, delta_digest=None)
    announcer = Announcer(
        manager, transfer_token="t", sources=[], every_s=60.0, max_staleness=0, finish_within_s=None
    )
    with announcer:
        assert announcer.ask_pool() is None
        announcer.announce(SimpleNamespace(weight_version=3, manifest=manifest))
        with pytest.raises(DeadlineError, match=r"does not know weight version 3 after 0\.2 s: .+"):
            announcer.wait(0.2, lambda: False)
        assert announcer._thread.is_alive()
