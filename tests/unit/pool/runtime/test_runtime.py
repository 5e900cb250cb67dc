"""What engines must serve outlives the manager."""

from rl_agent.pool.runtime.runtime import weights_of
from rl_agent.pool.schemas import WeightsRequest
from tests.support.pool_setup import manager

PUBLISHED = {"digest": "d" * 64, "sources": ["tcp://127.0.0.1:1"], "transfer_token": "t"}


async def test_a_restarted_manager_wants_the_model_and_the_weights_of_before(tmp_path):
    words = (f"journal={tmp_path / 'journal'}", "model=settings")
    async with manager(*words) as pool:
        await pool.call("POST", "/model", {"model": "org/m", "weight_version": 3})
        status, answer = await pool.call("POST", "/weights", {"weight_version": 4, **PUBLISHED})
        assert status == 200 and answer["is_accepted"]
    async with manager(*words) as pool:
        assert (pool.state.model, pool.state.weight_version) == ("org/m", 4)
        assert pool.state.weights is not None and pool.state.weights.digest == "d" * 64


def test_a_version_is_useful_from_itself_where_nothing_else_is_stated():
    published = WeightsRequest.model_validate(
        {"weight_version": 4, **PUBLISHED, "sources": ("tcp://127.0.0.1:1",)}
    )
    assert weights_of(published).useful_from == 4
