"""A chat template without an end, or without measure, is refused before the plan renders it."""

import json

import pytest

from rl_agent.chat import template_trial
from rl_agent.chat.template_trial import check_template_ends
from rl_agent.errors import ConfigError
from tests.support.tiny_chat import CHATML, save_tiny_model_folder

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ONLY_WITH_TOOLS = "{% if tools %}" + LOOP + "{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (LOOP, "computes without an end"),
        (ONLY_WITH_TOOLS, "computes without an end"),
        ("{{ 'a' * 10 ** 11 }}", "takes more than 2 GiB of memory"),
    ],
)
def test_a_template_without_end_or_measure_is_refused(tmp_path, monkeypatch, template, problem):
    monkeypatch.setattr(template_trial, "CPU_LIMIT_S", 1)
    save_tiny_model_folder(tmp_path, template)
    with pytest.raises(ConfigError, match=f"its chat template {problem}; give it another"):
        check_template_ends(tmp_path, {})


def test_variables_reach_the_template(tmp_path, monkeypatch):
    monkeypatch.setattr(template_trial, "CPU_LIMIT_S", 1)
    save_tiny_model_folder(tmp_path, "{% if deep %}" + LOOP + "{% endif %}" + CHATML)
    check_template_ends(tmp_path, {"deep": False})
    with pytest.raises(ConfigError, match="computes without an end"):
        check_template_ends(tmp_path, {"deep": True})


@pytest.mark.parametrize("template", [CHATML, "{{ raise_exception('no') }}", "{% broken", ""])
def test_other_faults_are_left_to_the_renderers(tmp_path, template):
    check_template_ends(save_tiny_model_folder(tmp_path, template), {})


def test_a_folder_without_a_tokenizer_is_left_to_its_readers(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": LOOP}))
    check_template_ends(tmp_path, {})
