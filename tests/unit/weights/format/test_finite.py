"""A version that holds NaN or infinity, or values of another kind than the model's, is not published."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_agent.errors import WeightsError
from rl_agent.weights.format.dtypes import torch_dtype
from rl_agent.weights.format.finite import largest_magnitude
from rl_agent.weights.publish.publish import Publisher
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import open_store, random_state
from tests.unit.weights.weight_versions import settings as publish_settings

CHECKED = ["F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "C64"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CHECKED), st.binary(min_size=8, max_size=64))
def test_the_largest_magnitude_is_finite_where_all_bits_are(dtype, bits):
    values = torch.frombuffer(bytearray(bits[: len(bits) // 8 * 8]), dtype=torch.uint8).view(
        torch_dtype(dtype)
    )
    expected = torch.isfinite(values.to(torch.complex64 if dtype == "C64" else torch.float64)).all()
    assert torch.isfinite(largest_magnitude(values)) == expected


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bool])
def test_integers_and_empty_tensors_are_finite(dtype):
    assert torch.isfinite(largest_magnitude(torch.ones(3, dtype=dtype)))
    assert torch.isfinite(largest_magnitude(torch.ones(0)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["embed.weight", "norm.weight", "scale"])
def test_a_value_that_is_not_finite_is_refused_by_name_and_nothing_is_left(tmp_path, name, value):
    state = random_state()
    with open_store(tmp_path) as store:
        publisher = Publisher(store, publish_settings())
        publisher.publish(1, StateDict.of(state))
        odd = state[name].clone()
        odd.view(-1)[-1] = value
        with pytest.raises(WeightsError, match=f"{name}: holds NaN or infinity.*weights.check_finite"):
            publisher.publish(2, StateDict.of(state | {name: odd}))
        assert store.versions == [1]
        assert not list(tmp_path.glob("draft-*"))
        publisher.publish(2, StateDict.of(state))


def test_the_check_can_be_switched_off(tmp_path):
    state = random_state() | {"scale": torch.tensor(float("nan"))}
    with open_store(tmp_path) as store:
        Publisher(store, publish_settings(check_finite=False)).publish(1, StateDict.of(state))
        assert store.versions == [1]


@pytest.mark.parametrize("dtype", [torch.int16, torch.float8_e4m3fn, torch.bool])
def test_a_tensor_of_another_kind_is_refused_where_it_was_a_float_before(tmp_path, dtype):
    state = random_state()
    with open_store(tmp_path) as store:
        publisher = Publisher(store, publish_settings())
        publisher.publish(1, StateDict.of(state))
        with pytest.raises(WeightsError, match=r"embed\.weight: is of type .*, in the version before BF16"):
            publisher.publish(2, StateDict.of(state | {"embed.weight": state["embed.weight"].to(dtype)}))
        publisher.publish(2, StateDict.of(state | {"embed.weight": state["embed.weight"].to(torch.float32)}))


def test_a_tensor_that_comes_in_another_kind_than_was_said_is_refused(tmp_path):
    class Lying(StateDict):
        def tensors(self):
            for name, tensor in super().tensors():
                yield name, tensor.to(torch.int64) if name == "norm.weight" else tensor

    with (
        open_store(tmp_path) as store,
        pytest.raises(WeightsError, match=r"norm\.weight: came as torch.int64"),
    ):
        Publisher(store, publish_settings()).publish(1, Lying(random_state(), {}))
