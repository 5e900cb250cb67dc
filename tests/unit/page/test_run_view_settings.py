"""Settings of a run: those that were typed first, and those in which two runs differ."""

import json

from rl_agent.page.run_view import common_settings, differences
from tests.unit.page.run_files import write_run


def plan_of(log_path, rate, **command):
    config = {"seed": 0, "log_path": str(log_path), "trainer": {"optimizer": {"learning_rate": rate}}}
    folder = log_path / "runs" / "latest"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"config": config, "command": command}))


async def test_overrides_as_typed_come_before_the_keys_people_set(tmp_path, look):
    plan_of(tmp_path, 2e-6, overrides=["trainer.optimizer.learning_rate=2e-6"])
    write_run(tmp_path)
    html = await (await (await look(tmp_path)).get("/")).text()
    shown = html[html.index("<summary>Settings") :]
    key = "<dt>trainer.optimizer.learning_rate</dt><dd>2e-06</dd>"
    assert 0 < shown.index("trainer.optimizer.learning_rate=2e-6</pre>") < shown.index(key)


async def test_a_comparison_begins_with_the_settings_that_differ(tmp_path, look):
    for name, rate in (("a", 1e-6), ("b", 3e-6)):
        plan_of(tmp_path / name, rate)
        write_run(tmp_path / name, {"iteration": 1, "split": "test", "test/success_rate": 0.5})
    html = await (await (await look(tmp_path / "a", tmp_path / "b")).get("/")).text()
    assert "trainer.optimizer.learning_rate</th><td>1e-06</td><td>3e-06</td>" in html
    assert "seed</th>" not in html and "log_path</th>" not in html
    assert html.index("Settings that differ") < html.index("Newest figures")


def test_a_key_that_one_run_lacks_is_a_difference():
    plans = {"a": {"config": {"x": {"y": None}}}, "b": {}}
    assert differences(plans) == [("x.y", ["null", "-"])]


def test_common_keys_have_the_order_of_the_files_and_values_of_the_run():
    config = {
        "trainer": {"kind": "grpo", "timeout_s": 9, "loss": {"dual_clip": 3, "clip_low": 0.1}},
        "policy_config": {"temperature": None, "top_p": 1.0},
    }
    assert list(common_settings({"config": config}).items()) == [
        ("policy_config.temperature", "null"),
        ("trainer.kind", "grpo"),
        ("trainer.loss.clip_low", "0.1"),
    ]
