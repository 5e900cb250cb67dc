"""The instant engine answers what the tasks of a simulated cluster want."""

from benchmarks.rollout import instant_engine
from tests.support.cluster import simulated_cluster
from tests.support.tiny_chat import TURN_END, tiny_tokenizer


def test_token_ids_of_the_instant_engine_decode_to_its_response():
    tokens = tiny_tokenizer().encode(instant_engine.RESPONSE + TURN_END, add_special_tokens=False)

    assert tokens.ids == instant_engine.TOKENS


def test_the_instant_engine_solves_the_tasks_of_a_simulated_cluster():
    assert instant_engine.RESPONSE == simulated_cluster.RESPONSE
