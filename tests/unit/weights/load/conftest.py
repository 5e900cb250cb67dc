"""Fixtures of the tests of loading."""

import pytest

from tests.unit.weights.weight_versions import publish_steps


@pytest.fixture
def store(tmp_path):
    with publish_steps(tmp_path, 2) as opened:
        yield opened
