"""Rows of the journal: tokens in a line, and what engines must serve."""

import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from rl_agent.pool.runtime.journal_rows import ProgressRow, wanted_writes
from rl_agent.pool.scheduler.records import PartialResponse

BEFORE = PartialResponse((1, 2, 3), (-0.1, -0.2, -0.3), "abc", (), 0)


def row(tokens, text_start, text, **fields):
    logprobs = fields.pop("logprobs", tuple(-float(token) for token in tokens))
    values = {"token_ids": tokens, "logprobs": logprobs, "text_start": text_start, "text": text}
    return ProgressRow(**values, spans=(), moves=fields.pop("moves", 1), digest="", deadline=0.0)


def test_a_row_replaces_all_from_its_start_on_and_keeps_what_is_before():
    after = PartialResponse((1, 2, 8, 9), (-0.1, -0.2, -8.0, -9.0), "axy", (), 1)
    assert row((8, 9), 1, "xy").follows(BEFORE, 2) == after
    assert row((5,), 0, "n").follows(None, 0).token_ids == (5,)


@pytest.mark.parametrize(("before", "start", "text_start"), [(BEFORE, 4, 3), (BEFORE, 3, 4), (None, 1, 0)])
def test_a_row_without_those_before_it_is_refused(before, start, text_start):
    with pytest.raises(ValueError, match=f"the tokens before number {start} are missing"):
        row((5,), text_start, "n").follows(before, start)


def test_a_row_whose_numbers_do_not_belong_together_is_none():
    with pytest.raises(ValidationError, match="2 tokens with 1 logprobs"):
        row((1, 2), 0, "", logprobs=(-1.0,))


def written(**state):
    usual = {"publisher": 0, "model": "", "model_version": 0, "weights": None}
    writes = wanted_writes(SimpleNamespace(**usual | state))
    return {kind: None if record is None else json.loads(record) for _, (kind, record) in writes}


def test_journal_keeps_the_published_model_and_the_publisher():
    assert written() == {}
    assert written(publisher=3) == {"publisher": {"publisher": 3}}
    model = {"model": "org/m", "weight_version": 4, "is_rollback": True}
    assert written(model="org/m", model_version=4) == {"model": model, "weights": None}
