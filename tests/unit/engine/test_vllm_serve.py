import io
import itertools
import json

import pytest

from rl_agent.engine.packed import ROUTE_KEEPALIVE_S
from rl_agent.engine.vllm_route import ROUTE
from rl_agent.engine.vllm_scheduler import SCHEDULER
from rl_agent.engine.vllm_serve import (
    HELD,
    fork_engines,
    keep_connections,
    let_others_run,
    wait_until_released,
    with_defaults,
)
from rl_agent.http.server import IDLE_S
from tests.unit.chat.tool_templates import OF_FORMAT


@pytest.mark.parametrize(
    ("set_default", "name", "is_usual", "chosen"),
    [
        (let_others_run, "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", lambda size: int(size) < 128, "64"),
        (fork_engines, "VLLM_WORKER_MULTIPROC_METHOD", "fork".__eq__, "spawn"),
    ],
    ids=["answers others meanwhile", "forks its processes"],
)
def test_a_server_has_a_variable_of_ours_unless_it_was_chosen(set_default, name, is_usual, chosen):
    usual: dict[str, str] = {}
    set_default(usual)
    assert usual.keys() == {name} and is_usual(usual[name])
    variables = {name: chosen}
    set_default(variables)
    assert variables == {name: chosen}


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
    name_of = lambda word: word.partition("=")[0].replace("_", "-").replace("--no-", "--")  # noqa: E731
    assert [word for word in words if name_of(word) == name_of(chosen[0])] == chosen[:1]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "mistral"])
@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_tool_calls_are_read_in_the_format_of_the_chat_template(tmp_path, name, file):
    template = OF_FORMAT[name]
    (tmp_path / file).write_text(
        template if file.endswith("jinja") else json.dumps({"chat_template": template})
    )
    words = with_defaults([str(tmp_path), "--port", "1"])
    assert words[-3:] == ["--enable-auto-tool-choice", "--tool-call-parser", name]


@pytest.mark.parametrize("content", [None, "no marks", "{"])
def test_a_model_without_calls_that_are_known_has_no_parser(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer_config.json").write_text(content)
    assert "--tool-call-parser" not in with_defaults([str(tmp_path)])


def test_a_parser_that_was_chosen_stays(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("<tool_call>")
    words = with_defaults([str(tmp_path), "--tool-call-parser=mine", "--enable-auto-tool-choice"])
    assert words.count("--enable-auto-tool-choice") == 1
    assert "--tool-call-parser" not in words


def test_a_held_server_goes_on_by_a_line_and_not_when_its_holder_ends():
    held = {HELD: "1"}
    assert wait_until_released(held, io.StringIO("\n"))
    assert not wait_until_released(held, io.StringIO(""))
    assert wait_until_released({}, io.StringIO(""))


def test_a_server_and_a_manager_keep_idle_connections_longer_than_clients():
    variables = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"}
    keep_connections(variables)
    assert min(int(variables["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]), IDLE_S) > ROUTE_KEEPALIVE_S
