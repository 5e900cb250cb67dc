"""The closing report: what is drawn and summed is what was recorded."""

import io

import pytest
from rich.console import Console

from rl_agent.cli import report as verb
from rl_agent.errors import ConfigError
from rl_agent.monitor import metrics
from rl_agent.monitor.report import (
    COLUMNS,
    TimelineSpan,
    attempts_table,
    by_iteration,
    by_name,
    count_episodes,
    failure_lines,
    headings,
    labels_of,
    read_timeline,
    reward_table,
    timeline_table,
)
from rl_agent.paths import RunPaths


def test_an_iteration_that_was_run_again_shows_its_later_numbers():
    rows = by_iteration(
        [
            {"iteration": 2, "test/reward_mean": 0.1},
            {"iteration": 1, "test/reward_mean": 0.3},
            {"iteration": 2, "test/reward_mean": 0.5},
        ]
    )
    assert list(rows) == [1, 2]
    assert rows[2]["test/reward_mean"] == 0.5


def test_the_timeline_is_summed_by_kind_of_work(tmp_path):
    path = tmp_path / "timeline.jsonl"
    path.write_text(
        '{"name": "rollout", "iteration": 1, "start": 1.0, "end": 3.0}\n'
        '{"name": "rollout", "iteration": 2, "start": 5.0, "end": 6.0}\n{"name": "r", "it'
    )
    table = timeline_table(read_timeline(path))
    assert [list(column.cells) for column in table.columns] == [["rollout"], ["2"], ["3.0"], ["1.5"]]


def test_a_report_leaves_a_png_beside_the_metrics(tmp_path, capsys):
    metrics.append(RunPaths(tmp_path).metrics, {"iteration": 1, "test/reward_mean": 0.25})
    assert verb.main(["--log-path", str(tmp_path)]) == 0
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "0.250" in printed
    assert "where the time went" not in printed, "there is no timeline, and a table of nothing says nothing"


@pytest.mark.parametrize(
    ("splits", "options"),
    [(("test", "test", "train"), "--split test --iteration 2 "), (("train",), "")],
)
def test_a_report_ends_with_a_command_that_lists_the_newest_evaluation(tmp_path, capsys, splits, options):
    for iteration, split in enumerate(splits, start=1):
        metrics.append(RunPaths(tmp_path).metrics, {"iteration": iteration, f"{split}/episodes": 4})
    assert verb.main(["--log-path", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f" trajectories list --log-path {tmp_path} {options}--limit 5")


def test_a_folder_without_a_run_is_refused_with_the_flag_named(tmp_path):
    with pytest.raises(ConfigError, match="--log-path"):
        verb.main(["--log-path", str(tmp_path)])


def shown(table, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_the_reward_table_fits_80_columns_with_whole_headings():
    numbers = dict.fromkeys(COLUMNS.values(), 0.123) | {"train/episodes": 123_456, "update/samples": 123_456}
    rows = {100: numbers | {"test/success_rate": 0.1, "train/success_rate": 0.1}}
    text = shown(reward_table(rows))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    for heading in headings(rows):
        assert all(word in text for word in heading.split())


def test_rewards_that_repeat_success_in_every_row_have_no_column():
    ones = {"test/success_rate": 0.5, "test/reward_mean": 0.5, "train/success_rate": 0.25}
    repeated = ones | {"train/reward_mean": 0.25 + 1e-16}
    assert "reward" not in shown(reward_table({1: repeated, 2: {"update/loss": 0.5}}))
    assert (
        shown(reward_table({1: repeated, 2: ones | {"train/reward_mean": 0.3}})).split().count("reward") == 2
    )


@pytest.mark.parametrize(
    "update, unit",
    [({"update/samples": 654, "update/candidates": 2048}, "steps"), ({"update/samples": 2048}, "episodes")],
)
def test_the_table_of_rewards_names_the_unit_of_what_was_trained_on(update, unit):
    words = shown(reward_table({1: {"train/episodes": 2048, **update}})).split()
    assert words.count(unit) == (2 if unit == "episodes" else 1) and words.count("trained") == 1


def test_pass_at_k_of_several_test_sets_stands_side_by_side_with_intervals():
    sets = {"": {"4/0": 10, "4/4": 10}, "[bold]sums": {"4/4": 10}}
    text = shown(attempts_table({1: {"test/outcomes": sets}}))
    assert "all tasks" in text and "[bold]sums" in text
    (line,) = (line for line in text.splitlines() if "pass@4" in line)
    assert (
        "0.500 (0.299-0.701)" in line and "1.000 (0.722-1.000)" in line
    )  # Wilson's for 10 of 20 and 10 of 10


def test_one_attempt_a_task_of_one_test_set_needs_no_second_table():
    assert attempts_table({1: {"test/outcomes": {"": {"1/1": 5}}}}) is None


def test_all_episodes_of_a_run_are_counted_and_what_is_missing_is_stated():
    whole = {"train/episodes": 64, "train/completed_share": 61 / 64, "train/failed_share": 3 / 64}
    rows = {1: whole | {"train/submitted": 64, "test/episodes": 9, "test/timed_out_share": 1.0}, 2: {}}
    assert str(count_episodes(rows)) == "submitted=73 completed=61 failed=3 timed_out=9 abandoned=0"
    lost = count_episodes({1: {"train/episodes": 4, "train/completed_share": 1.0, "train/submitted": 6}})
    assert str(lost).endswith(" unrecorded=2") and not lost.is_all_completed


def test_the_commonest_failures_of_the_newest_iteration_are_named():
    failed = {"test/episodes": 64, "test/completed_share": 0.25, "test/commonest_failures": ["48 x E: [why]"]}
    assert failure_lines({1: failed}) == [
        "test iteration 1: 48 of 64 episodes have no reward, most often: 48 x E: [why]"
    ]
    assert failure_lines({1: failed, 2: {"test/episodes": 64, "test/completed_share": 1.0}}) == []


def test_a_span_within_another_is_named_as_its_part():
    spans = [
        TimelineSpan("rollout", 1, 0.0, 10.0),
        TimelineSpan("update", 1, 10.0, 20.0),
        TimelineSpan("training", 1, 11.0, 19.0),
        TimelineSpan("engine_start", 1, 20.0, 25.0),
    ]
    names = ["rollout", "update", "training (in update)", "engine_start"]
    assert list(labels_of(by_name(spans)).values()) == names
    spans.append(TimelineSpan("training", 2, 30.0, 31.0))
    assert labels_of(by_name(spans))["training"] == "training"


ESCAPES = "\x1b]0;title\x07\x1b[31m\u202e"
OK = b'{"iteration": 2, "test/success_rate": 0.5}\n'


def reported(folder, capsys) -> str:
    assert verb.main(["--log-path", str(folder)]) == 0
    return capsys.readouterr().out


def test_a_reason_of_a_failure_stays_in_its_line_and_drives_no_terminal(tmp_path, capsys):
    reason = f"3 x {ESCAPES}\nwhat to do\n  - run this"
    failed = {
        "iteration": 1,
        "test/episodes": 3,
        "test/completed_share": 0,
        "test/commonest_failures": [reason],
    }
    metrics.append(RunPaths(tmp_path).metrics, failed)
    (line,) = (line for line in reported(tmp_path, capsys).splitlines() if "what to do" in line)
    assert line.startswith("test iteration 1: 3 of 3") and line.isprintable() and line.endswith("- run this")


def test_the_name_of_a_log_path_is_no_formula(tmp_path, capsys):
    folder = tmp_path / r"run $\frac{$ [bold]"
    folder.mkdir()
    RunPaths(folder).metrics.write_bytes(OK)
    assert r"$\frac{$ [bold]" in reported(folder, capsys)


def test_curves_that_cannot_be_written_hide_no_table_and_leave_nothing(tmp_path, capsys):
    RunPaths(tmp_path).metrics.write_bytes(OK)
    (tmp_path / "reward.png").mkdir()
    with pytest.raises(OSError, match=r"reward\.png'$"):
        verb.main(["--log-path", str(tmp_path)])
    assert "0.500" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "reward.png"}
