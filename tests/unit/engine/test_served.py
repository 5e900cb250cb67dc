"""A server that was started on `model.pt` is judged by when the process behind its port started."""

import os
import socket
import subprocess
import sys
import time

import pytest

from rl_agent.config.overrides.words import parse_override
from rl_agent.engine.model import OLDER, resolve_model
from rl_agent.engine.served import engine_started_at, version_served
from rl_agent.engine.server import Answer, judge_roots
from rl_agent.plan.compose import compose_config

LISTEN = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1]); input()"


@pytest.fixture
def listen():
    """Start a program that listens; gives its port. `name` is a word of its command line."""
    started = []

    def start(name):
        command = [sys.executable, "-uc", LISTEN, name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return int(process.stdout.readline())

    yield start
    for process in started:
        process.communicate("\n")


def config(tmp_path, *words):
    overrides = [parse_override(word, "test") for word in ("model_config.base_model=/base", *words)]
    return compose_config(overrides, data_path=tmp_path, log_path=tmp_path, num_gpus=0).config


def publish(tmp_path, *, switched_at):
    folder = tmp_path / "checkpoints" / "version-000003"
    folder.mkdir(parents=True)
    link = tmp_path / "model.pt"
    link.symlink_to(folder)
    os.utime(link, (switched_at, switched_at), follow_symlinks=False)
    return link


def test_the_start_of_a_local_vllm_is_known(tmp_path, listen):
    before = time.time()
    started = engine_started_at(config(tmp_path, f"engine.port={listen('vllm')}"))
    assert before - 1 <= started <= time.time()


def test_servers_other_than_a_vllm_of_this_machine_have_no_version(tmp_path, listen):
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    words = [f"engine.port={listen('ssh')}", f"engine.port={closed}", "engine.url=http://10.1.2.3:8999"]
    assert [engine_started_at(config(tmp_path, word)) for word in words] == [None, None, None]


def test_a_url_that_names_this_machine_is_local(tmp_path, listen):
    url = f"engine.url=http://localhost:{listen('vllm')}"
    assert engine_started_at(config(tmp_path, url)) is not None


@pytest.mark.parametrize(("offset_s", "version"), [(-60, 3), (60, OLDER)])
def test_a_server_on_the_link_holds_what_the_link_named_when_it_started(tmp_path, listen, offset_s, version):
    link = publish(tmp_path, switched_at=time.time() + offset_s)
    settings = config(tmp_path, f"engine.port={listen('vllm')}")
    assert version_served(str(link), settings, resolve_model(settings)) == version


def test_an_older_model_behind_the_link_is_named_in_words(tmp_path, listen):
    link = publish(tmp_path, switched_at=time.time() + 60)
    probe = judge_roots([str(link)], config(tmp_path, f"engine.port={listen('vllm')}"))
    assert probe.answer is Answer.OLD_VERSION
    assert "before model.pt was switched" in probe.detail
    assert "version -1" not in probe.detail
