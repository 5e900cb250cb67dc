"""An engine that could not be started is one line that names the flag."""

import sys

import pytest

from rl_agent.errors import UsageError
from rl_agent.worker import preflight


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that says how many GPUs the machine has."""
    return lambda count: monkeypatch.setattr(preflight, "count_gpus", lambda environ: count)


@pytest.mark.parametrize(
    ("given", "count", "named"),
    [
        ("a,b", 2, "--gpus 'a,b': GPU numbers"),
        ("", 2, "--gpus ''"),
        ("0,", 2, "--gpus '0,'"),
        ("0", 0, "--gpus 0: this machine shows no GPU"),
        ("1,2", 2, "there is no GPU 2; the last one is 1"),
    ],
)
def test_gpus_that_are_not_there_are_refused(gpus, tmp_path, given, count, named):
    gpus(count)
    with pytest.raises(UsageError, match=named):
        preflight.check_gpus(given, {}, tmp_path)


@pytest.mark.parametrize("device", ["nvidia0", "kfd"])
def test_gpus_that_no_tool_lists_are_taken_where_their_device_files_are(gpus, tmp_path, device):
    gpus(0)
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(UsageError):
        preflight.check_gpus("0", {}, tmp_path)
    (tmp_path / device).touch()
    preflight.check_gpus("0", {}, tmp_path)


def test_gpus_that_are_there_are_taken_whatever_the_caller_sees(monkeypatch):
    environments = []
    monkeypatch.setattr(preflight, "count_gpus", lambda environ: environments.append(environ) or 2)
    preflight.check_gpus("0,1", {"CUDA_VISIBLE_DEVICES": "", "PATH": "x"})
    preflight.check_gpus("GPU-8932f937-d72c", {})
    preflight.check_gpus(None, {})
    assert environments == [{"PATH": "x"}, {}]


@pytest.mark.parametrize("name", ["a b/c", "", "x" * 201, "a\n", "é\x1b"])
def test_a_name_that_no_url_or_label_takes_is_refused(name):
    with pytest.raises(UsageError, match="--name"):
        preflight.check_name(name)
    preflight.check_name("host-1.example/gpu0,1")


def test_an_engine_that_the_interpreter_lacks_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--engine no_such_engine: this Python has no"):
        preflight.check_engine("no_such_engine", sys.executable)
    preflight.check_engine("json", sys.executable)
    with pytest.raises(UsageError, match=r"--engine-python .*/absent: there is no such program"):
        preflight.check_engine("json", str(tmp_path / "absent"))


def test_a_path_that_is_no_model_is_refused_and_a_hub_name_is_not(tmp_path):
    (tmp_path / "file").write_text("x")
    for model, named in {
        "/nope": "no such folder",
        "": "no such folder",
        str(tmp_path): "no config.json",
        str(tmp_path / "file"): "is a file",
    }.items():
        with pytest.raises(UsageError, match=f"--model .*{named}"):
            preflight.check_model_folder(model)
    (tmp_path / "config.json").write_text("{}")
    for model in (str(tmp_path), "Qwen/Qwen3-0.6B", "s3://bucket/a/b", None):
        preflight.check_model_folder(model)


def test_a_folder_of_mistrals_own_format_is_a_model(tmp_path):
    (tmp_path / "params.json").write_text("{}")
    preflight.check_model_folder(str(tmp_path))
