"""Fixtures of the tests of the trainer."""

from collections.abc import Iterator

import pytest

from rl_agent.trainer.grpo.model.parallel import Ranks
from tests.integration.trainer.ranks import single_rank


@pytest.fixture(scope="module")
def alone() -> Iterator[Ranks]:
    """This process as the only rank."""
    with single_rank() as ranks:
        yield ranks
