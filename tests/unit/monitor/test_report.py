"""The closing report: what is drawn and summed is what was recorded."""

from rl_agent.cli import report as verb
from rl_agent.errors import ConfigError
from rl_agent.monitor import metrics
from rl_agent.monitor.report import by_iteration, read_timeline, timeline_table
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
        '{"name": "rollout", "iteration": 2, "start": 5.0, "end": 6.0}\n'
    )
    table = timeline_table(read_timeline(path))
    assert [list(column.cells) for column in table.columns] == [["rollout"], ["2"], ["3.0"], ["1.5"]]


def test_a_report_leaves_a_png_beside_the_metrics(tmp_path, capsys):
    metrics.append(RunPaths(tmp_path).metrics, {"iteration": 1, "test/reward_mean": 0.25})
    assert verb.main(["--log-path", str(tmp_path)]) == 0
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert "0.250" in capsys.readouterr().out


def test_a_folder_without_a_run_is_refused_with_the_flag_named(tmp_path):
    try:
        verb.main(["--log-path", str(tmp_path)])
    except ConfigError as error:
        assert "--log-path" in str(error)
    else:
        raise AssertionError("no error")
