"""The server's command line, who answers on its port, and the wait for a starting one."""

import json
import os

import pytest

from rl_agent.config.overrides.words import parse_override
from rl_agent.engine.ready import wait_ready
from rl_agent.engine.server import (
    Answer,
    Probe,
    data_parallel_size,
    judge_roots,
    last_lines,
    last_words,
    probe,
    reason_in,
    server_argv,
    server_environment,
)
from rl_agent.errors import ConfigError, DeadlineError, EngineDied
from rl_agent.plan.compose import compose_config
from tests.support.rollout_setup import plan_of


def config(tmp_path, *words, num_gpus=0):
    overrides = [parse_override(word, "test") for word in ("model_config.base_model=/base", *words)]
    return compose_config(overrides, data_path=tmp_path, log_path=tmp_path, num_gpus=num_gpus).config


def plan(tmp_path, *words, num_gpus=0):
    return plan_of(config(tmp_path, *words, num_gpus=num_gpus), num_gpus=num_gpus)


def publish(tmp_path, version):
    folder = tmp_path / "checkpoints" / f"version-{version:06d}"
    folder.mkdir(parents=True)
    link = tmp_path / "model.pt"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    return str(folder)


def value_of(flag, argv):
    return argv[argv.index(flag) + 1]


def test_the_documented_flags_are_the_defaults_on_gpus(tmp_path):
    argv = server_argv(plan(tmp_path, num_gpus=4), python="python")
    assert argv[:4] == ["python", "-m", "rl_agent.engine.vllm_serve", "/base"]
    expected = {
        "--port": "8999",
        "--max-num-seqs": "512",
        "--gpu-memory-utilization": "0.95",
        "--max-model-len": "32768",
        "--tensor-parallel-size": "1",
        "--data-parallel-size": "4",
        "--limit-mm-per-prompt": '{"video": 0}',
        "--allowed-local-media-path": str(tmp_path),
    }
    assert {flag: value_of(flag, argv) for flag in expected} == expected
    assert "--reasoning-parser" not in argv
    assert "--enforce-eager" not in argv


def test_the_newest_model_is_served_by_its_resolved_folder(tmp_path):
    folder = publish(tmp_path, 3)
    assert server_argv(plan(tmp_path))[3] == folder


def test_data_parallel_ranks_are_started_by_the_command_of_a_single_server(tmp_path):
    single, many = (server_argv(plan(tmp_path, "engine=gpu", num_gpus=gpus)) for gpus in (1, 8))
    size = single.index("--data-parallel-size") + 1
    assert (single[size], many[size]) == ("1", "8")
    assert single[:size] + single[size + 1 :] == many[:size] + many[size + 1 :]


def test_thinking_models_get_their_reasoning_parser(tmp_path):
    argv = server_argv(plan(tmp_path, "model=qwen3-think"))
    assert value_of("--reasoning-parser", argv) == "deepseek_r1"


def test_extra_arguments_add_to_the_command_and_win_over_it(tmp_path):
    words = "engine.extra_args={max_num_seqs:7,chunked:false,eager:true,gone:null,rope:{a:1},list:[x,2]}"
    argv = server_argv(plan(tmp_path, words))
    assert argv.count("--max-num-seqs") == 1
    assert value_of("--max-num-seqs", argv) == "7"
    assert {"--no-chunked", "--eager"} <= set(argv)
    assert "--gone" not in argv
    assert value_of("--rope", argv) == '{"a": 1}'
    assert argv[argv.index("--list") + 1 :][:2] == ["x", "2"]


@pytest.mark.parametrize(
    ("word", "gpus", "size"),
    [
        ("engine.tensor_parallel_size=1", 8, 8),
        ("engine.tensor_parallel_size=4", 8, 2),
        ("engine.data_parallel_size=3", 8, 3),
        ("engine.tensor_parallel_size=4", 0, 1),
    ],
)
def test_replicas_fill_the_gpus_unless_configured(tmp_path, word, gpus, size):
    assert data_parallel_size(config(tmp_path, "engine=gpu", word), gpus) == size


def test_the_server_gets_the_key_and_its_extra_environment(tmp_path):
    words = ["engine.api_key_env_var=MY_KEY", "engine.extra_env.A=b"]
    environment = server_environment(config(tmp_path, *words), {"MY_KEY": "secret", "PATH": "/bin"})
    assert environment["VLLM_API_KEY"] == "secret"
    assert environment["A"] == "b"
    assert environment["PATH"] == "/bin"


@pytest.mark.parametrize("mib, threads", [(5, 1), (269, len(os.sched_getaffinity(0)))])
def test_a_cpu_engine_takes_all_cores_unless_its_model_is_a_toy(tmp_path, mib, threads):
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(mib << 20)
    publish(tmp_path, 1)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.pt" / "model.safetensors")
    assert server_environment(config(tmp_path, "engine=cpu"), {})["OMP_NUM_THREADS"] == str(threads)


@pytest.mark.parametrize(
    "words, environ", [(["engine.extra_env.OMP_NUM_THREADS='3'"], {}), ([], {"OMP_NUM_THREADS": "3"})]
)
def test_a_number_of_threads_that_a_person_sets_is_kept(tmp_path, words, environ):
    assert server_environment(config(tmp_path, "engine=cpu", *words), environ)["OMP_NUM_THREADS"] == "3"


def test_a_server_is_known_by_the_model_it_names(tmp_path):
    old, new = publish(tmp_path, 1), publish(tmp_path, 2)
    settings = config(tmp_path)
    answers = {root: judge_roots([root], settings).answer for root in (old, new, "/base", "/foreign")}
    assert answers == {
        old: Answer.OLD_VERSION,
        new: Answer.WANTED,
        "/base": Answer.OLD_VERSION,
        "/foreign": Answer.STRANGER,
    }


def test_a_server_with_adapters_is_known_by_any_of_its_models(tmp_path):
    assert judge_roots(["/foreign", "/base"], config(tmp_path)).answer is Answer.WANTED
    assert judge_roots([], config(tmp_path)).answer is Answer.STRANGER


CARDS = json.dumps({"data": [{"id": "m", "root": "/base"}]}).encode()


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, CARDS, Answer.WANTED),
        (200, b"<html>", Answer.STRANGER),
        (200, b'{"data": 3}', Answer.STRANGER),
        (503, b"", Answer.NOT_READY),
        (404, b"", Answer.STRANGER),
    ],
)
def test_a_probe_tells_an_engine_from_a_stranger(tmp_path, serve, status, body, answer):
    assert probe(config(tmp_path, f"engine.port={serve(status, body)}"), {}).answer is answer


def test_a_probe_ignores_proxies_of_the_outer_world(tmp_path, serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert probe(config(tmp_path, f"engine.port={serve(200, CARDS)}"), {}).answer is Answer.WANTED


@pytest.mark.parametrize("url", ["localhost:8999", "ftp://host:1"])
def test_an_address_without_a_scheme_is_an_error_of_the_configuration(tmp_path, url):
    with pytest.raises(ConfigError, match=rf"^engine\.url={url}: expected http://host:port$"):
        probe(config(tmp_path, f"engine.url={url}"), {})


def test_a_free_port_answers_nothing(tmp_path, serve):
    settings = config(tmp_path, f"engine.port={serve(200, CARDS)}", "engine.host=127.0.0.2")
    assert probe(settings, {}).answer is Answer.NOTHING


class Start:
    """A server that answers from `ready_at` and dies at `dies_at`, on a clock that only waiting moves."""

    def __init__(self, *, ready_at=None, dies_at=None, answer=Answer.WANTED):
        self.now, self.ready_at, self.dies_at, self.answer = 0.0, ready_at, dies_at, answer

    def wait(self, log, **more):
        more |= {"timeout_s": 60.0, "clock": lambda: self.now, "sleep": self.sleep}
        return wait_ready(self.ask, self.is_alive, log, **more)

    def ask(self):
        is_ready = self.ready_at is not None and self.now >= self.ready_at
        return Probe(self.answer if is_ready else Answer.NOTHING, "details")

    def is_alive(self):
        return self.dies_at is None or self.now < self.dies_at

    def sleep(self, seconds):
        self.now += seconds


def test_a_server_that_becomes_ready_is_waited_for(tmp_path):
    start = Start(ready_at=20)
    assert start.wait(tmp_path / "log").answer is Answer.WANTED
    assert start.now == pytest.approx(20, abs=1)


def test_a_wait_for_a_server_says_how_long_it_has_lasted(tmp_path):
    waited = []
    Start(ready_at=2).wait(tmp_path / "log", on_wait=waited.append)
    assert waited[0] == 0.0 and waited[-1] == pytest.approx(1.75)


def test_a_server_dead_at_second_3_fails_at_second_4_with_its_last_words(tmp_path):
    log = tmp_path / "log"
    log.write_text("first\n" + "noise\n" * 50 + "CUDA error: out of luck\n")
    start = Start(dies_at=3)
    with pytest.raises(EngineDied, match=r"(?s)noise.*out of luck") as raised:
        start.wait(log)
    assert start.now < 4
    assert "first" not in str(raised.value)


def test_the_deadline_names_its_key_and_shows_the_log(tmp_path):
    with pytest.raises(DeadlineError, match="start_timeout_s=60"):
        Start().wait(tmp_path / "log")


@pytest.mark.parametrize("answer", [Answer.STRANGER, Answer.OLD_VERSION])
def test_another_program_at_the_address_is_reported(tmp_path, answer):
    with pytest.raises(ConfigError, match="another program"):
        Start(ready_at=1, answer=answer).wait(tmp_path / "log")


def test_the_end_of_a_log_begins_with_the_error_behind_its_last_words(tmp_path):
    log = tmp_path / "vllm.log"
    frames = "".join(f"  frame {number}\n" for number in range(20))
    middle = "Exception: WorkerProc failed. See stack trace for root cause."
    log.write_text(f"SafetensorError: incomplete\n{middle}\n{frames}RuntimeError: See root cause above.\n")

    lines = last_lines(log).splitlines()

    assert (lines[0], lines[-1]) == ("SafetensorError: incomplete", "RuntimeError: See root cause above.")
    assert len(lines) == 16


def test_an_engine_of_the_pool_has_no_log_here(tmp_path):
    assert last_lines(tmp_path) == reason_in(tmp_path / "absent") == "(no log)"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            "(APIServer pid=12) OSError: first\n(APIServer pid=12)   File x\n"
            "(APIServer pid=12) OSError: Repo id must be a name\n"
            "(APIServer pid=12) RuntimeError: failed, see root cause above\nbye\n",
            "OSError: Repo id must be a name",
        ),
        ("one\nNo module named sglang\n", "No module named sglang"),
    ],
    ids=["last error", "last line"],
)
def test_the_reason_in_a_log_is_its_last_error_or_else_its_last_line(tmp_path, lines, reason):
    (tmp_path / "engine.log").write_text(lines)
    assert reason_in(tmp_path / "engine.log") == reason


def test_a_log_that_quotes_another_one_is_quoted_once(tmp_path):
    log = tmp_path / "worker.log"
    log.write_text("engine a loads its model, 40 s so far; its log ends: compiling a graph\n")
    assert last_words(log) == "compiling a graph"
