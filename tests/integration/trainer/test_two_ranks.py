"""Two ranks make the gradient of one: of every loss, however groups arrive, with adapters and with experts.

All cases come from one start of two processes (`ranks.of_two_ranks`), so they stand in one file.
"""

import pytest

from tests.integration.trainer.ranks import (
    EXPERTS,
    OF_MICRO_BATCHES,
    ONE_BY_ONE,
    VARIANTS,
    Case,
    compute,
    distance,
    of_two_ranks,
)

BOTH = pytest.mark.parametrize("shard_size", [1, 2], ids=["DDP", "FSDP"])


@BOTH
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_make_the_gradient_of_one(alone, variant, shard_size):
    expected, expected_metrics = compute(alone, "whole", **VARIANTS[variant] | {"shares": False})
    for name in OF_MICRO_BATCHES:
        expected_metrics.pop(name)
    for arrival in ("whole", "streamed"):
        found, metrics = of_two_ranks()[Case(variant, shard_size, arrival)]
        assert distance(found, expected) < 1e-6
        # Losses of both signs add up to a hundredth of their size.
        shared = {name: value for name, value in metrics.items() if name not in OF_MICRO_BATCHES}
        assert shared == pytest.approx(expected_metrics, rel=1e-6, abs=1e-7)


@BOTH
@pytest.mark.parametrize("variant", ONE_BY_ONE)
def test_ranks_that_score_by_sequence_make_the_gradient_of_packed_ones(alone, variant, shard_size):
    expected, _ = compute(alone, "whole", **ONE_BY_ONE[variant] | {"is_packed": True})
    found, _ = of_two_ranks()[Case(variant, shard_size, "streamed")]
    assert distance(found, expected) < 1e-5


@BOTH
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_make_the_gradient_of_one_adapter(alone, variant, shard_size):
    expected, _ = compute(alone, "whole", adapter=True, **VARIANTS[variant] | {"shares": False})
    found, _ = of_two_ranks()[Case(variant, shard_size, "streamed", adapter=True)]
    assert distance(found, expected) < 1e-5


@BOTH
def test_two_ranks_read_their_experts_and_make_the_gradient_of_one(alone, shard_size):
    expected, _ = compute(alone, "whole", experts=True)
    found, _ = of_two_ranks()[Case(EXPERTS, shard_size, "streamed")]
    assert distance(found, expected) < 1e-5
