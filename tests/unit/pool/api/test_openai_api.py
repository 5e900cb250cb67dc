"""A client of the OpenAI API is told of a request that failed."""

import json

import pytest

from rl_agent.pool.api.openai_api import failure_of
from rl_agent.pool.scheduler.records import FailureKind, Order, Request
from tests.support.pool_world import id_of

STATUSES = {
    FailureKind.REFUSED: (400, "BadRequestError"),
    FailureKind.PROMPT_TOO_LONG: (400, "BadRequestError"),
    FailureKind.DEADLINE: (504, "InternalServerError"),
    FailureKind.BROKEN_OFF: (502, "InternalServerError"),
    FailureKind.CRASHES_ENGINES: (502, "InternalServerError"),
    FailureKind.WRONG_ANSWERS: (502, "InternalServerError"),
    FailureKind.INTERNAL: (500, "InternalServerError"),
}


@pytest.mark.parametrize("kind", STATUSES, ids=lambda kind: kind.name)
def test_the_status_of_a_failure_is_that_of_its_kind_whatever_its_words(kind):
    request = Request(Order(id_of("r"), (1,), 10, {}, 1e9), number=0, submitted_at=0.0)
    request.failure_kind, request.failure = kind, "its deadline was refused"
    error = failure_of(request)
    assert (error.status, json.loads(error.text)["error"]["type"]) == STATUSES[kind]


def test_every_kind_of_failure_but_leaving_has_a_status_here():
    assert set(FailureKind) - set(STATUSES) == {FailureKind.CANCELLED}
