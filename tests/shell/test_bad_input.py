"""Bad input is one clear line and exit 2, 69 or 78, before anything is started or written."""

import socket
import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT

JOIN = ("--rl-phase", "rollout", "--join")
UPDATE = ("--rl-phase", "update")
BOTH = ("--rl-phase", "both", "--eval-interval", "1")


def assert_refused(harness, done, code, *parts):
    assert done.returncode == code, done.stderr
    message = done.stderr.strip().splitlines()[-1]
    for part in parts:
        assert str(part) in message
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert harness.calls == []
    assert not harness.log.exists()


def bad_task_line(harness):
    (harness.data / "train.jsonl").write_text(
        '{"task_id": "a", "prompt": "p", "env": "math", "answer": "1"}\n{"bad\n'
    )


def task_without_answer(harness):
    (harness.data / "train.jsonl").write_text(
        '{"task_id": "a", "prompt": "p", "env": "math", "answer": "1"}\n\n'
        '{"task_id": "b", "prompt": "p", "env": "math"}\n'
    )


def no_weights(harness):
    (harness.home / "model" / "model.safetensors").unlink()


def no_config(harness):
    (harness.home / "model" / "config.json").unlink()


def no_tokenizer(harness):
    (harness.home / "model" / "tokenizer.json").unlink()


def broken_off_weights(harness):
    header = b'{"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}'
    weights = len(header).to_bytes(8, "little") + header + b"0" * 3999
    (harness.home / "model" / "model.safetensors").write_bytes(weights)


def missing_shard(harness):
    index = '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'
    (harness.home / "model" / "model.safetensors.index.json").write_text(index)


def nothing(harness):
    pass


CASES = {
    "no phase": (nothing, (), 2, ["--rl-phase is missing"]),
    "unknown flag": (nothing, (*UPDATE, "--iterations", "3"), 2, ["--max-iterations"]),
    "unknown key": (nothing, (*UPDATE, "engine.prot=1"), 78, ["engine.prot", "did you mean engine.port?"]),
    "wrong type": (nothing, (*UPDATE, "trainer.cutoff_len=long"), 78, ["trainer.cutoff_len=long", "integer"]),
    "bad task line": (bad_task_line, BOTH, 78, ["train.jsonl:2:"]),
    "task without answer": (task_without_answer, BOTH, 78, ["train.jsonl:3: task b: no answer"]),
    "missing task file": (nothing, (*BOTH, "env_config.test_tasks=no.jsonl"), 78, ["no.jsonl"]),
    "unknown environment": (nothing, (*BOTH, "env_config.kinds={math:no.such:Thing}"), 78, ["no.such"]),
    "model without weights": (no_weights, UPDATE, 78, ["model_config.base_model", "no weights"]),
    "model without config": (no_config, UPDATE, 78, ["model_config.base_model", "config.json"]),
    "model without tokenizer": (no_tokenizer, BOTH, 78, ["model_config.base_model", "no tokenizer.json"]),
    "model cut short": (broken_off_weights, BOTH, 78, ["model_config.base_model", "is cut short"]),
    "model without a shard": (missing_shard, BOTH, 78, ["model_config.base_model", "model-2.safetensors"]),
    "judge without key": (nothing, (*BOTH, "rollout.reward=judge"), 78, ["OPENAI_API_KEY"]),
    "GPU engine without GPU": (nothing, (*BOTH, "engine=gpu"), 69, ["no GPU is visible", "engine=cpu"]),
    "GPU engine without GPU, streamed": (
        nothing,
        (*BOTH, "engine=gpu", "trainer=grpo_cpu", "pool=elastic"),
        69,
        ["no GPU is visible", "trainer=grpo_cpu"],
    ),
    "url without debug mode": (nothing, (*BOTH, "engine.url=http://x:1"), 78, ["--debug-mode"]),
    "joining no run": (nothing, (*JOIN, "--dry-run"), 78, ["--join: no run was started"]),
    "joining with a flag of the run": (nothing, (*JOIN, "--resume"), 2, ["--resume does not go with --join"]),
    "debug mode without engine": (nothing, (*BOTH, "--debug-mode"), 69, ["--debug-mode needs an engine"]),
    "nothing to resume": (nothing, (*UPDATE, "--resume"), 78, ["--resume: no run was started"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_one_line(harness, name):
    prepare, words, code, parts = CASES[name]
    prepare(harness)
    assert_refused(harness, harness.plan(*words), code, *parts)


def test_a_missing_data_path_is_named(harness):
    (harness.data / "train.jsonl").unlink()
    (harness.data / "test.jsonl").unlink()
    harness.data.rmdir()
    assert_refused(harness, harness.run(*UPDATE), 78, "--data-path", harness.data, "no such folder")


def test_a_port_in_use_names_its_owner(harness):
    listen = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print(); input()"
    owner = subprocess.Popen(
        [sys.executable, "-uc", listen, str(harness.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    owner.stdout.readline()

    done = harness.plan(*BOTH)

    assert owner.poll() is None
    owner.communicate(b"\n")
    assert_refused(harness, done, 69, f"engine.port={harness.port}", f"process {owner.pid}", "create_server")


def test_a_hub_model_that_is_nowhere_is_refused_offline_and_online(harness):
    words = harness.argv(*UPDATE, "model_config.base_model=Nobody/Nothing-1B")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for environ, code in (({"HF_HUB_OFFLINE": "1"}, 78), ({"HF_ENDPOINT": endpoint}, 69)):
            done = subprocess.run(
                words, env=harness.env(**environ), capture_output=True, text=True, timeout=30
            )
            assert_refused(harness, done, code, "Nobody/Nothing-1B", "not in the cache")


def test_too_little_disk_is_refused(harness):
    with (harness.home / "model" / "model.safetensors").open("r+b") as file:
        file.truncate(2**43)  # a sparse file: claims 8 TiB, holds nothing
    assert_refused(harness, harness.plan(*UPDATE), 69, "--log-path", "free")


def test_a_python_without_the_package_is_named(harness):
    done = harness.run(*UPDATE, RL_AGENT_PYTHON="/usr/bin/false")
    assert_refused(harness, done, 78, "/usr/bin/false cannot import rl_agent")


def test_help_and_dry_run_write_nothing(harness):
    shown = harness.run("--help")
    planned = harness.run(*BOTH, "--dry-run")
    assert shown.returncode == planned.returncode == 0
    assert "--rollout-split" in shown.stdout
    for part in (
        "rl_agent.engine.vllm_serve",
        "base_model",
        "free",
        str(harness.port),
        "iteration 1",
        "1024 of 1 train tasks (with repeats)",
        "--dry-run --verbose",
    ):
        assert part in planned.stdout
    assert len(planned.stdout.splitlines()) < 60
    assert not harness.log.exists()
    assert sorted(path.name for path in harness.data.iterdir()) == ["test.jsonl", "train.jsonl"]
    assert harness.calls == []


POSIX = (["env", "POSIXLY_CORRECT=1", "bash"], ["env", "SHELLOPTS=posix", "bash"])


@pytest.mark.parametrize("shell", [["sh"], ["bash", "--posix"], *POSIX], ids=" ".join)
def test_a_script_that_another_shell_is_given_becomes_bash(shell):
    script = PROJECT_ROOT / "scripts" / "run.sh"
    done = subprocess.run([*shell, script, "--help"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: bash scripts/run.sh")


def test_every_script_that_a_person_starts_becomes_bash():
    scripts = [*PROJECT_ROOT.glob("scripts/*.sh"), *PROJECT_ROOT.glob("scripts/examples/*.sh")]
    for path in scripts:
        before, marker, _ = path.read_text().partition("\nset -Eeuo pipefail\n")
        assert not marker or ' bash "$0"' in before, path


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--iteration", "3"], "unknown flag '--iteration'; did you mean --iterations?; see --help"),
        (["--zzz"], "unknown flag '--zzz'; see --help"),
        (["--model", "smolm2"], "--model is tiny or smollm2, got 'smolm2'; did you mean smollm2?"),
        (["--model", "smollm2", "--agent", "web"], "--model smollm2 takes --agent text and --trainer grpo"),
        (["--trainer", "gpro"], "--trainer is llamafactory or grpo, got 'gpro'; did you mean grpo?"),
    ],
)
def test_the_quickstart_names_the_nearest_flag(words, line):
    script = PROJECT_ROOT / "scripts" / "quickstart.sh"
    done = subprocess.run(["bash", script, *words], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (2, f"quickstart: {line}\n")
