"""The view of a run: its figures and its settings are those of the files, whatever stands in them."""

import json
import re

from rl_agent.config.overrides.keys import valid_keys
from rl_agent.page.run_view import MAIN_KEYS, differences
from tests.unit.page.run_files import write_run

SCRIPT = "<script>alert(1)</script>"


async def test_tables_and_curves_show_the_numbers_of_the_files(tmp_path, shown):
    write_run(
        tmp_path,
        {"iteration": 1, "split": "test", "test/success_rate": 0.5, "test/reward_mean": 0.512},
        {"iteration": 1, "train/success_rate": 0.25, "train/reward_mean": 0.3, "train/episodes": 2048},
        {"iteration": 2, "split": "test", "test/success_rate": 0.75, "test/reward_mean": 0.8},
        {"iteration": 2, "update_step": 7, "trainer/cost": 1.25, "update_step/loss": 0.125},
        {"iteration": 2, "update_step": 7, "trainer/cost": 1.5, "update_step/loss": 0.375},
        {"iteration": 2, "split": "train", "train/judge_cost_usd": 0.25},
        spans=[
            {"name": "rollout", "iteration": 1, "start": 100.0, "end": 130.0},
            {"name": "update", "iteration": 1, "start": 130.0, "end": 140.0},
        ],
    )
    html = await shown(tmp_path)
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    assert ["1", "-", "0.500", "0.512", "0.250", "0.300", "2,048", "-", "-"] in rows
    assert ["2", "-", "0.750", "0.800", "-", "-", "-", "-", "-"] in rows
    assert ["rollout", "1", "30.0", "30.0", "75 %"] in rows
    assert ["update", "1", "10.0", "10.0", "25 %"] in rows
    assert "evaluation: 0.750 at iteration 2" in html and "rollout: 0.250 at iteration 1" in html
    assert "training: 0.375 at update step 7" in html and "0.125" not in html  # the later line counts
    assert "$1.75" in html and "+0.250 since iteration 1, reward 0.800" in html and "40.0 s" in html


async def test_words_of_a_file_are_text_and_never_a_part_of_the_page(tmp_path, shown):
    log_path = tmp_path / f"{SCRIPT.replace('/', '')}"
    log_path.mkdir()
    numbers = {"iteration": 1, "train/episodes": 2, "train/completed_share": 0.5, SCRIPT: 1.0}
    span = {"name": SCRIPT, "iteration": 1, "start": 1.0, "end": 2.0}
    write_run(log_path, numbers | {"train/commonest_failures": [SCRIPT]}, spans=[span])
    plan = log_path / "runs" / "latest"
    plan.mkdir(parents=True)
    (plan / "plan.json").write_text(json.dumps({"config": {"run_name": SCRIPT, "seed": SCRIPT}}))
    html = await shown(log_path)
    assert html.count("<script") == 1 and '<script src="/static/page.js" defer>' in html
    assert html.count("&lt;script&gt;") >= 4


async def test_the_newest_evaluation_shows_a_rewarded_and_a_failed_response(tmp_path, shown):
    example = {"is_success": True, "reward": 1.0, "response": "42", "expected": "42", "prompt": "6 * 7 ="}
    failed = {**example, "is_success": False, "reward": 0.0, "response": SCRIPT}
    old = {"iteration": 1, "split": "test", "test/examples": [{**example, "response": "old"}]}
    write_run(tmp_path, old, {"iteration": 2, "split": "test", "test/examples": [example, failed]})
    html = await shown(tmp_path)
    table = html[html.index('id="examples"') : html.index('id="curves"')]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    assert rows[1:] == [
        ["1", "42", "42", "6 * 7 ="],
        ["0", SCRIPT.replace("<", "&lt;").replace(">", "&gt;"), "42", "6 * 7 ="],
    ]


async def test_runs_are_compared_side_by_side(tmp_path, look):
    for name, reward in (("a", 0.25), ("b", 0.75)):
        (tmp_path / name / "x").mkdir(parents=True)
        write_run(tmp_path / name / "x", {"iteration": 1, "split": "test", "test/success_rate": reward})
    client = await look(tmp_path / "a" / "x", tmp_path / "b" / "x")
    html = await (await client.get("/")).text()
    assert "x: 0.250 at iteration 1" in html and "x-2: 0.750 at iteration 1" in html
    assert (await client.get("/runs/x-2/")).status == 200
    assert (await client.get("/runs/y/")).status == 404


async def test_numbers_out_of_range_are_reported_in_words(tmp_path, shown):
    step = {"trainer/episodes": 64, "trainer/logprob_difference": 2.7, "trainer/entropy": 0.3}
    later = {**step, "trainer/logprob_difference": 4.5, "trainer/updates_since_sampling": 1}
    write_run(
        tmp_path, {"iteration": 3, "update_step": 9, **step}, {"iteration": 3, "update_step": 10, **later}
    )
    html = await shown(tmp_path)
    alarm = html[html.index('id="alarm"') : html.index("</section>")]
    assert "iteration 3: engine and trainer differ by 2.7 nats per token" in alarm and "entropy" not in alarm


async def test_diagrams_that_are_0_throughout_are_folded(tmp_path, shown):
    write_run(
        tmp_path, *({"iteration": n, "train/failed_share": 0.0, "train/success_rate": 0.0} for n in (1, 2))
    )
    html = await shown(tmp_path)
    assert "0 throughout: share of episodes (rollout)</summary>" in html
    assert html.index(">success rate</figcaption>") < html.index("0 throughout")
    assert html.index("0 throughout") < html.index(">share of episodes (rollout)</figcaption>")


async def test_rewards_below_the_threshold_lead_where_none_succeeds(tmp_path, shown):
    rewards = {1: 0.2, 2: 0.35}
    write_run(
        tmp_path,
        *(
            {"iteration": n, "split": "train", "train/success_rate": 0.0, "train/reward_mean": reward}
            for n, reward in rewards.items()
        ),
    )
    html = await shown(tmp_path)
    assert "<dt>train reward</dt><dd>0.350</dd>" in html and "+0.150 since iteration 1" in html
    assert "train success</dt>" not in html


async def test_the_first_curves_of_grpo_are_drawn_by_default(tmp_path, shown):
    names = ("entropy", "kl", "clip_fraction", "logprob_difference")
    step = {f"trainer/{name}": 0.0625 for name in names} | {"update_step/grad_norm": 0.0625}
    write_run(
        tmp_path,
        {"iteration": 1, "train/zero_std_groups_share": 0.0625, "train/response_tokens_mean": 0.0625},
        *({"iteration": 1, "update_step": n} | step for n in (1, 2)),
    )
    html = await shown(tmp_path)
    assert html.count('points="') == 7 and html.count(": 0.062 at update step 2") == 5


def plan_of(log_path, rate, **command):
    config = {"seed": 0, "log_path": str(log_path), "trainer": {"optimizer": {"learning_rate": rate}}}
    folder = log_path / "runs" / "latest"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"config": config, "command": command}))


async def test_settings_begin_with_overrides_and_main_keys_and_fold_the_rest(tmp_path, shown):
    plan_of(tmp_path, 2e-6, overrides=["trainer.optimizer.learning_rate=2e-6"], num_nodes=2)
    write_run(tmp_path)
    html = await shown(tmp_path)
    main, _, rest = html[html.index("<summary>Settings") :].partition("<summary>All settings (3)")
    key = "<dt>trainer.optimizer.learning_rate</dt><dd>2e-06</dd>"
    assert 0 < main.index("trainer.optimizer.learning_rate=2e-6</pre>") < main.index(key)
    assert "<dt>nodes</dt><dd>2</dd>" in main and "log_path" not in main
    assert key in rest and f"<dt>log_path</dt><dd>{tmp_path}</dd>" in rest and "</pre>" not in rest


def test_main_keys_of_settings_are_keys_of_the_configuration():
    assert set(MAIN_KEYS) <= set(valid_keys())


async def test_a_comparison_begins_with_the_settings_that_differ(tmp_path, shown):
    for name, rate in (("a", 1e-6), ("b", 3e-6)):
        plan_of(tmp_path / name, rate)
        write_run(tmp_path / name, {"iteration": 1, "split": "test", "test/success_rate": 0.5})
    html = await shown(tmp_path / "a", tmp_path / "b")
    assert "trainer.optimizer.learning_rate</th><td>1e-06</td><td>3e-06</td>" in html
    assert "seed</th>" not in html and "log_path</th>" not in html
    figures = (
        html[html.index("Settings that differ") :].partition("Newest figures")[2].partition("</table>")[0]
    )
    assert figures.count("0.500") == 2


def test_a_key_that_one_run_lacks_is_a_difference():
    plans = {"a": {"config": {"x": {"y": None}}}, "b": {}}
    assert differences(plans) == [("x.y", ["null", "-"])]
