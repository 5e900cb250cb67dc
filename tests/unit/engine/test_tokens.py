"""A sampled token from an engine: an id of the vocabulary, and a log-probability."""

import json
import math

import pytest

from rl_agent.engine.tokens import MINUS_INFINITY, ROUNDING, flaw_of, usual_length_of, vocabulary_of


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "flaw"),
    [
        ([1, 2], [-0.5], "2 token ids with 1 logprobs"),
        ([1, -1], [0.0, 0.0], "a token id -1, where the vocabulary ends at 100"),
        ([100], [0.0], "a token id 100, where the vocabulary ends at 100"),
        ([2**70], [0.0], "of more than 64 bits"),
        ([1], [0.5], "a logprob of 0.5"),
        ([1], [math.nan], "a logprob of nan"),
        ([1, 2], [math.inf, -math.inf], "a logprob of inf"),
        ([1], [MINUS_INFINITY], "a logprob of -9999"),
    ],
)
def test_tokens_that_cannot_have_been_sampled_are_named(token_ids, logprobs, flaw):
    assert flaw in flaw_of(token_ids, logprobs, 100)


def test_rounding_and_an_unknown_vocabulary_are_no_flaws():
    assert flaw_of([99], [ROUNDING], 100) == flaw_of([10**6], [-9998.0], None) == flaw_of([], [], 100) == ""


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 151_936}, 151_936),
        ({"text_config": {"vocab_size": 64}}, 64),
        ({"vocab_size": "many"}, None),
        ({"vocab_size": True}, None),
        ({"vocab_size": -1, "text_config": {"vocab_size": 5}}, None),
        ({"text_config": 3}, None),
        ([1], None),
    ],
)
def test_the_vocabulary_is_read_where_a_model_says_it(tmp_path, config, size):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocabulary_of(tmp_path) == size
    assert usual_length_of(tmp_path) is None


def test_the_usual_length_is_that_of_the_generation_config(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 2048}')
    assert usual_length_of(tmp_path) == 2048
    (tmp_path / "generation_config.json").write_text("[" * 100_000)
    assert usual_length_of(tmp_path) is None
