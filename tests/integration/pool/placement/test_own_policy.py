"""A placement policy of the user's that fails, over HTTP: requests go on, and it is named."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.support.pool_setup import are_exact, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, start_engine

POLICY = """
import math

class Own:
    def score(self, engine{more}):
        if engine.engine_id in ("a" * 32, "b" * 32):  # the samples that it is tried on
            return 0.0
        {body}
"""
FAULTS = {
    "raises": ("raise RuntimeError('no such engine')", "score raises RuntimeError: no such engine"),
    "exits": ("raise SystemExit(0)", "score raises SystemExit: 0"),
    "nan": ("return math.nan", "score returns NaN, not a number"),
    "nonsense": ("return 'the fast one'", "score returns str, not a number"),
    "nothing": ("pass", "score returns NoneType, not a number"),
}
LIMIT_S = 60


@pytest.mark.parametrize("more", ["", ", request"], ids=["engines", "requests"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failing_policy_is_named_and_least_work_decides(tmp_path, caplog, fault, more):
    body, words = FAULTS[fault]
    module = f"policy_{fault.replace(' ', '_')}_{len(more)}"
    (tmp_path / f"{module}.py").write_text(POLICY.format(more=more, body=body))
    name = f"{module}:Own"
    async with AsyncExitStack() as stack, asyncio.timeout(LIMIT_S):
        pool = await stack.enter_async_context(
            manager(f"policy={name}", f"module_folders=[{tmp_path}]", "lease_s=30")
        )
        for _ in range(2):
            served = await start_engine(StreamingEngine(Behaviour(), interval_s=0.002, chunk=8))
            stack.push_async_callback(served.kill)
            await pool.join(served.url, capacity=4)
        await pool.ready(2)
        await pool.submit("run", [40] * 8)
        await pool.until(lambda: all(engine.running for engine in pool.state.engines.values()))
        samples = await pool.samples("run", at_least=8)
        assert are_exact(samples, 40)
        status, answer = await pool.call("GET", "/status")
        assert status == 200 and answer["placement"]["policy"] == name
        assert answer["placement"]["fallbacks"] >= 1 and words in answer["placement"]["fault"]
        assert answer["engine_deaths"] == 0
    fallbacks = answer["placement"]["fallbacks"]
    lines = [record.getMessage() for record in caplog.records if record.msg.startswith("policy=")]
    assert lines[0].startswith(f"policy={name}: {words}; least_work decides instead")
    assert len(lines) <= len(str(fallbacks))
