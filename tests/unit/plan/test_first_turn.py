"""A fault of every task is found when the run is planned; a fault of some is not refused."""

import os
import sys
import textwrap
from dataclasses import replace

import pytest
from PIL import Image

from rl_agent.config.overrides.words import parse_override
from rl_agent.errors import ConfigError
from rl_agent.plan import first_turn
from rl_agent.plan.checks import SPLITS
from rl_agent.plan.compose import compose_config
from rl_agent.plan.first_turn import check_first_turns
from rl_agent.plan.hub import FoundModel
from rl_agent.types import Task
from tests.support.tiny_chat import save_tiny_model_folder
from tests.unit.chat.tool_templates import ALTERNATING, HERMES, VISUAL

ENVIRONMENT = """
    import asyncio
    from rl_agent.types import Observation, StepResult

    class Fickle:
        closed = 0
        async def reset(self, task, seed):
            print("an environment that prints")
            how = task.answer
            if how == "breaks":
                raise KeyError("no\\nbrowser")
            if how == "hangs":
                await asyncio.Event().wait()
            if how == "ends":
                import os
                os._exit(3)
            if how == "sleeps":
                import time
                time.sleep(600)
            if how == "blocks":
                import time
                await asyncio.to_thread(time.sleep, 60)
            self.how, self.turns = how, 0
            images = (task.extra["image"],) if "image" in task.extra else ()
            return "no observation" if how == "misshapen" else Observation(task.prompt, images)
        async def step(self, action):
            self.turns += 1
            if self.how == "fails" or self.how == "fails late" and self.turns == 3:
                return 1 / 0
            if self.how == "thinks":
                await asyncio.sleep(0.01)
            return StepResult(Observation(""), done=self.how == "fine")
        async def close(self):
            Fickle.closed += 1
        @staticmethod
        def tools(task):
            return [{"type": "function", "function": {"name": "look", "description": "x" * 200,
                     "parameters": {"type": "object", "properties": {}}}}]
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "fickle_environment.py").write_text(textwrap.dedent(ENVIRONMENT))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("fickle_environment", None)
    monkeypatch.setattr(first_turn, "LIMIT_S", 0.3)
    monkeypatch.setattr(first_turn, "PLAY_LIMIT_S", 0.3)

    def compose(*words, workers=0):
        kind = "+env_config.kinds.fickle=fickle_environment:Fickle"
        words = (f"env_config.module_folders=[{tmp_path}]", f"env_config.workers={workers}", kind, *words)
        overrides = [parse_override(word, "test") for word in words]
        return compose_config(overrides, data_path=tmp_path, log_path=tmp_path / "log", num_gpus=0).config

    return compose


def tasks(*answers, prompt="1 + 1 ="):
    return [Task(f"task-{n}", prompt, "fickle", "easy", answer=answer) for n, answer in enumerate(answers)]


NO_MODEL = FoundModel("a/model", None, None, frozenset())


def model(folder, template="{{ messages[0].content }}"):
    save_tiny_model_folder(folder, template)
    return FoundModel(str(folder), folder, {}, frozenset())


@pytest.mark.parametrize(
    ("how", "reason"), [("breaks", "KeyError"), ("misshapen", "reset returned str, not an Observation")]
)
def test_an_environment_that_begins_no_episode_is_refused_with_the_reason(config, how, reason):
    with pytest.raises(ConfigError, match=reason) as refused:
        check_first_turns(config(), tasks(*[how] * 9), NO_MODEL)
    tried = "env_config.kinds.fickle: no episode can begin (4 of 9 tasks tried); task task-0"
    assert tried in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dry_run_refuses_an_environment_whose_step_always_raises(config, monkeypatch, workers):
    monkeypatch.setattr(first_turn, "LIMIT_S", 60)
    monkeypatch.setattr(first_turn, "PLAY_LIMIT_S", 60)
    line = 2 + textwrap.dedent(ENVIRONMENT).splitlines()[1:].index("            return 1 / 0")
    for how, turn in (("fails", 1), ("fails late", 3)):
        told = rf"step {turn} failed: fickle_environment.py:{line}: ZeroDivisionError: division by zero$"
        with pytest.raises(ConfigError, match=told) as refused:
            check_first_turns(config(workers=workers), tasks(*[how] * 9), NO_MODEL, plays=True)
        assert "env_config.kinds.fickle: no episode can be played (4 of 9 tasks tried)" in str(refused.value)
        assert check_first_turns(config(workers=workers), tasks(how), NO_MODEL) == ()


def test_a_dry_run_plays_no_more_steps_than_an_episode_has(config):
    def limited(most):
        return config(*(f"env_config.{split}_difficulty_max_steps={{easy: {most}}}" for split in SPLITS))

    assert check_first_turns(limited(2), tasks("fails late"), NO_MODEL, plays=True) == ()
    (note,) = check_first_turns(limited(99999), tasks("thinks"), NO_MODEL, plays=True)
    assert note.startswith("env_config.kinds.fickle: no episode was played within 0.3 s")


def test_a_dry_run_accepts_an_environment_of_which_some_steps_succeed(config):
    assert check_first_turns(config(), tasks("fails", "fine"), NO_MODEL, plays=True) == ()


def test_tasks_of_which_some_begin_are_accepted_and_environments_closed(config):
    assert check_first_turns(config(), tasks("breaks", "fine"), NO_MODEL) == ()
    assert sys.modules["fickle_environment"].Fickle.closed == 2


@pytest.mark.parametrize("how", ["hangs", "blocks"])
def test_a_slow_environment_is_noted_and_does_not_delay_the_plan(config, how):
    (note,) = check_first_turns(config(), tasks(how), NO_MODEL)
    assert "no episode began within 0.3 s" in note


def test_an_agents_program_is_not_started_without_a_model(config, tmp_path):
    task = Task("task-0", "1 + 1 =", "agent", "easy")
    started = tmp_path / "started"
    agent = config(f"+env_config.kwargs.agent.command='touch {started}'")
    (note,) = check_first_turns(agent, [task], NO_MODEL)
    assert note == "env_config.kinds.agent: its program is not started without a model"
    assert not started.exists()


def test_an_environment_that_ends_its_process_is_refused_by_the_plan(config, monkeypatch):
    monkeypatch.setattr(first_turn, "LIMIT_S", 60)
    message = r"no episode can begin \(1 of 1 tasks tried\); task task-0: .*worker"
    with pytest.raises(ConfigError, match=message):
        check_first_turns(config(workers=1), tasks("ends"), NO_MODEL)


def test_an_environment_that_blocks_its_process_does_not_hold_up_the_plan(config, monkeypatch):
    monkeypatch.setattr(first_turn, "LIMIT_S", 2)
    (note,) = check_first_turns(config(workers=1), tasks("sleeps"), NO_MODEL)
    assert "no episode began within 2 s" in note


def test_prompts_without_room_for_a_response_are_refused_by_the_limits_key(config, tmp_path):
    long = tasks("fine", "fine", prompt="1+2=" * 40)
    with pytest.raises(ConfigError, match=r"^engine.max_model_len=32: the first prompt of task task-0 has "):
        check_first_turns(config("engine.max_model_len=32"), long, model(tmp_path))
    assert check_first_turns(config("engine.max_model_len=512"), long, model(tmp_path)) == ()


def test_one_short_prompt_among_long_ones_is_enough_to_begin(config, tmp_path):
    mixed = [*tasks("fine", prompt="1+2=" * 40), *tasks("fine", "fine")[1:]]
    assert check_first_turns(config("engine.max_model_len=32"), mixed, model(tmp_path)) == ()


def test_an_environments_output_is_not_taken_for_the_plan(config, capfd):
    check_first_turns(config(), tasks("fine"), NO_MODEL)
    os.write(1, b"the plan\n")
    printed = capfd.readouterr()
    assert printed.out == "the plan\n"
    assert "an environment that prints" in printed.err


def picture(folder):
    Image.new("RGB", (32, 32)).save(folder / "picture.png")
    return str(folder / "picture.png")


def tasks_with_images(folder, **changes):
    (task,) = tasks("fine", **changes)
    return [replace(task, extra={"image": picture(folder)})]


def test_tools_count_as_a_part_of_the_first_prompt(config, tmp_path):
    model_folder = model(tmp_path, HERMES)
    words = "policy_config.action_format=tool_calls"
    message = r"^engine.max_model_len=256: .* has 4\d\d tokens \(4\d\d of them for its tools\)"
    with pytest.raises(ConfigError, match=message):
        check_first_turns(config("engine.max_model_len=256", words), tasks("fine"), model_folder)
    assert check_first_turns(config("engine.max_model_len=512", words), tasks("fine"), model_folder) == ()
    assert check_first_turns(config("engine.max_model_len=256"), tasks("fine"), model_folder) == ()


REFUSES_SYSTEM = (
    "{%- if messages[0].role == 'system' %}{{- raise_exception('no system prompts here') }}{%- endif %}"
)


@pytest.mark.parametrize("template", [VISUAL, HERMES], ids=["parts", "text alone"])
def test_a_first_prompt_with_images_that_the_template_refuses_is_found(config, tmp_path, template):
    with_images = tasks_with_images(tmp_path)
    refusing = model(tmp_path, REFUSES_SYSTEM + template)
    message = r"^model_config.base_model=.*: the first prompt of task task-0 .* no system prompts"
    with pytest.raises(ConfigError, match=message):
        check_first_turns(config("policy_config.system_prompt=Act"), with_images, refusing)
    assert check_first_turns(config("policy_config.system_prompt=null"), with_images, refusing) == ()


def test_a_first_prompt_with_images_and_too_long_a_text_is_refused(config, tmp_path):
    long = tasks_with_images(tmp_path, prompt="1+2=" * 40)
    message = r"^engine.max_model_len=64: the first prompt of task task-0 has at least "
    with pytest.raises(ConfigError, match=message):
        check_first_turns(config("engine.max_model_len=64"), long, model(tmp_path, VISUAL))
    assert check_first_turns(config("engine.max_model_len=512"), long, model(tmp_path, VISUAL)) == ()


def test_an_image_for_a_model_trained_without_any_is_refused(config, tmp_path):
    with pytest.raises(ConfigError, match="no images"):
        check_first_turns(config(), tasks_with_images(tmp_path), NO_MODEL, no_images="no images")
    assert check_first_turns(config(), tasks("fine"), NO_MODEL, no_images="no images") == ()


def test_a_template_that_cannot_continue_after_a_call_is_refused(config, tmp_path):
    model_folder = model(tmp_path, ALTERNATING + VISUAL)
    calling = config("policy_config.action_format=tool_calls", "engine.max_model_len=4096")
    with pytest.raises(ConfigError, match=r"^policy_config.action_format=tool_calls: .* must alternate"):
        check_first_turns(calling, tasks_with_images(tmp_path), model_folder)
    assert check_first_turns(calling, tasks("fine"), model_folder) == ()
