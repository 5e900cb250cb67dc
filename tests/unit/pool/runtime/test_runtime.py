"""Settings that engines must serve outlive the manager."""

from rl_agent.pool.runtime.runtime import weights_of
from rl_agent.pool.schemas import WeightsRequest


def test_a_version_is_useful_from_itself_where_nothing_else_is_stated():
    more = {"digest": "d" * 64, "sources": ("tcp://127.0.0.1:1",), "transfer_token": "t"}
    assert weights_of(WeightsRequest(weight_version=4, **more)).useful_from == 4
