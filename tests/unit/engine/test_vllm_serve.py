import itertools

import pytest

from rl_agent.engine.vllm_route import ROUTE
from rl_agent.engine.vllm_scheduler import SCHEDULER
from rl_agent.engine.vllm_serve import let_others_run, with_defaults


def test_a_server_that_is_behind_its_engine_answers_others_meanwhile():
    usual: dict[str, str] = {}
    let_others_run(usual)
    assert int(usual["VLLM_V1_OUTPUT_PROC_CHUNK_SIZE"]) < 128
    chosen = {"VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "64"}
    let_others_run(chosen)
    assert chosen == {"VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "64"}


def test_a_server_has_our_route_and_our_defaults():
    words = with_defaults(["model", "--port", "1"])
    assert words[:3] == ["model", "--port", "1"]
    pairs = list(itertools.pairwise(words))
    for pair in (("--generation-config", "vllm"), ("--scheduler-cls", SCHEDULER), ("--middleware", ROUTE)):
        assert pairs.count(pair) == 1
    assert words.count("--disable-uvicorn-access-log") == 1


@pytest.mark.parametrize(
    "chosen",
    [
        ["--generation-config", "auto"],
        ["--generation-config=auto"],
        ["--generation_config", "auto"],
        ["--scheduler-cls", "my.Scheduler"],
        ["--no-disable-uvicorn-access-log"],
        ["--disable-uvicorn-access-log"],
    ],
)
def test_what_the_caller_says_is_said_once(chosen):
    words = with_defaults(["model", *chosen])
    name = chosen[0].partition("=")[0].replace("_", "-").replace("--no-", "--")
    said = [word for word in words if word.partition("=")[0].replace("_", "-").replace("--no-", "--") == name]
    assert said == chosen[:1]
