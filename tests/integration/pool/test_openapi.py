"""Requests drawn from the manager's own description, right and wrong ones: never an error of its own making.

RL_AGENT_POOL_API_EXAMPLES=300 draws so many of each route instead of a few.
"""

import os
from http import HTTPStatus

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from rl_agent.cluster.shared_fs.address import free_port
from tests.integration.pool.test_restart import manager_process

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

EXAMPLES = int(os.environ.get("RL_AGENT_POOL_API_EXAMPLES", "12"))
WORDS = ("request_timeout_s=0.05",)
HONEST = {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
"""There is no engine, which the manager says."""


def call_often(operation, modes) -> int:
    """Call one route with drawn requests; how many were called."""
    called = 0
    strategies = [operation.as_strategy(generation_mode=mode) for mode in modes]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(strategies))
    def call(case) -> None:
        nonlocal called
        called += 1
        if "/samples" in operation.path:
            case.query = (case.query or {}) | {"wait_s": 0}
        response = case.call(timeout=20)
        said = f"{case.method} {case.formatted_path} {case.query} {case.body!r}: {response.status_code}"
        assert response.status_code < 500 or response.status_code in HONEST, said
        if response.status_code >= 400 and "json" in response.headers["content-type"][0]:
            error = response.json()["error"]
            assert error["message"] and error["code"] == response.status_code, said
        elif response.status_code < 300 and "ndjson" not in response.headers["content-type"][0]:
            case.validate_response(
                response, checks=[schemathesis.checks.CHECKS.get_one("response_schema_conformance")]
            )

    call()
    return called


@pytest.mark.timeout(1200)
async def test_the_service_keeps_what_its_description_says(tmp_path):
    import asyncio

    async with manager_process(free_port(), tmp_path / "journal", *WORDS) as (process, url):
        description = url + "/openapi.json"
        schema = await asyncio.to_thread(schemathesis.openapi.from_url, description)
        operations = [found.ok() for found in schema.get_all_operations()]
        assert {("POST", "/engines"), ("GET", "/runs/{run}/samples"), ("POST", "/v1/completions")} <= {
            (one.method.upper(), one.path) for one in operations
        }
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for operation in operations:
            can_be_wrong = operation.body or operation.query or operation.path_parameters
            called = await asyncio.to_thread(call_often, operation, modes if can_be_wrong else modes[:1])
            assert called
        assert process.returncode is None
        async with aiohttp.ClientSession() as session, session.get(url + "/status") as answer:
            asked = (await answer.json())["requests"]
            assert asked["submitted"] == asked["open"] + asked["completed"] + asked["failed"]
