"""Fixtures of the tests of workers."""

import pytest

from tests.integration.pool.publishing import Trainer
from tests.support.weight_transfers import host
from tests.unit.weights.weight_versions import open_store, random_state


@pytest.fixture
def trainer(tmp_path):
    with host(open_store(tmp_path / "trainer", keep_versions=9)) as sender:
        yield Trainer(sender, random_state())
