"""The verb `trajectories`: what a run recorded can be found, read and taken elsewhere."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rl_agent.cli.trajectories import main
from rl_agent.errors import ConfigError, StoreError
from rl_agent.paths import RunPaths
from rl_agent.types import Compaction, EpisodeKey, SeenContext, Status
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard


def record(paths: RunPaths, iteration: int, split: str, *episodes, complete: bool = True) -> None:
    name = paths.shard if complete else paths.checkpoint_shard
    write_shard(name(split, iteration), make_header(iteration, split), *episodes)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    paths = RunPaths(tmp_path / "log [bold]")
    record(
        paths,
        1,
        "train",
        make_trajectory(0, steps=(make_step("zwölf<|im_end|>", images=("/i/a.png",)), make_step("13"))),
        make_trajectory(1, reward=0.0, difficulty="hard"),
        make_trajectory(2, status=Status.FAILED, steps=()),
    )
    record(paths, 2, "train", make_trajectory(3, iteration=2), complete=False)
    record(paths, 1, "test", make_trajectory(0, split="test", reward=0.5))
    return paths.log_path


def listed(capsys, log: Path, *options: str) -> list[str]:
    main(["list", "--log-path", str(log), *options])
    lines = capsys.readouterr().out.splitlines()
    return [" ".join(line.split()[:3]) for line in lines[1:-1]]


def shown_of(capsys, log_path: Path, key: str = "task-0:0:0", *options: str) -> str:
    main(["show", "--log-path", str(log_path), key, *options])
    return capsys.readouterr().out


EVERYTHING = ["task-0:0:0 train 1", "task-1:0:0 train 1", "task-2:0:0 train 1", "task-3:0:0 train 2"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), [*EVERYTHING, "task-0:0:0 test 1"]),
        (("--split", "train"), EVERYTHING),
        (("--iteration", "2"), EVERYTHING[3:]),
        (("--iteration", "1", "--iteration", "2", "--split", "train"), EVERYTHING),
        (("--status", "failed"), EVERYTHING[2:3]),
        (("--min-reward", "0.5"), [EVERYTHING[0], EVERYTHING[3], "task-0:0:0 test 1"]),
        (("--min-reward", "0.1", "--max-reward", "0.9"), ["task-0:0:0 test 1"]),
        (("--difficulty", "hard"), EVERYTHING[1:2]),
        (("--task-id", "task-3"), EVERYTHING[3:]),
        (("--limit", "2"), EVERYTHING[:2]),
        (("--limit", "0", "--split", "test"), ["task-0:0:0 test 1"]),
        (("--iteration", "9"), []),
        (("--iteration", "2000000"), []),
        (("--limit", "2000000", "--iteration", "2"), EVERYTHING[3:]),
        (("--max-reward", "-1e-3"), []),
    ],
)
async def test_the_list_shows_what_every_option_accepts(log, capsys, options, expected):
    assert listed(capsys, log, *options) == expected


async def test_the_list_ends_with_a_count_that_says_what_is_left_out(log, capsys):
    main(["list", "--log-path", str(log), "--limit", "1"])
    count = "5 episodes, mean reward 0.625 of 4; 4 more, --limit 0 lists all"
    assert capsys.readouterr().out.splitlines()[-1] == count


async def test_the_list_shows_prompt_answer_and_response(tmp_path, capsys):
    trajectory = make_trajectory(0)
    prompt = "Think.\n" * 20 + "What is 12 + 30?"
    task = dataclasses.replace(trajectory.task, prompt=prompt, answer="42")
    steps = (make_step("well, " * 20 + "it is 41"),)
    record(RunPaths(tmp_path), 1, "train", dataclasses.replace(trajectory, task=task, steps=steps))
    main(["list", "--log-path", str(tmp_path)])
    heading, row = capsys.readouterr().out.splitlines()[:2]
    assert heading.split()[-3:] == ["prompt", "answer", "last_response"]
    assert "…. Think. Think" in row and "What is 12 + 30?  42 " in row and row.rstrip().endswith("it is 41")


async def test_show_prints_every_turn_and_names_images(log, capsys):
    shown = shown_of(capsys, log, "task-0:0:0", "--split", "train")
    for part in ("[image /i/a.png]", "zwölf<|im_end|>", "step 1: observation", "reward 1"):
        assert part in shown


async def test_show_says_what_the_engine_saw_of_earlier_steps(tmp_path, capsys):
    first, second = make_step("12", images=("/i/a.png",)), make_step("13", images=("/i/b.png",))
    summary = Compaction(2, (1,), (), first.generation)
    seen = SeenContext("summary", ("a", "b"), whole_from=3, as_lines=1, compactions=(summary,))
    paths = RunPaths(tmp_path)
    record(paths, 1, "train", make_trajectory(0, steps=(first, replace(second, seen=seen))))
    shown = shown_of(capsys, tmp_path)
    assert "--- summary of the steps before 2\n12" in shown
    assert shown.count("--- context") == 1
    assert "--- context whole from step 3, 1 before it as lines, 2 left out, 2 images" in shown


@pytest.mark.parametrize("width", [40, 80, 200])
async def test_the_list_shows_whole_keys_in_any_terminal(tmp_path, capsys, monkeypatch, width):
    from rl_agent.cli import trajectories
    from rl_agent.system import terminal

    paths = RunPaths(tmp_path / "log")
    long = make_trajectory(0)
    task_id = "a-task-with-a-long-name-" + "x" * 10
    record(paths, 1, "train", dataclasses.replace(long, key=dataclasses.replace(long.key, task_id=task_id)))
    monkeypatch.setattr(trajectories, "_console", lambda: terminal.console(width=width))
    main(["list", "--log-path", str(paths.log_path)])
    shown = capsys.readouterr().out
    assert f"{task_id}:0:0" in shown
    assert ("too narrow for" in shown) == (width < 200)


def test_a_narrow_terminal_shows_the_end_of_each_prompt(tmp_path, capsys, monkeypatch):
    from rl_agent.cli import trajectories
    from rl_agent.system import terminal

    asked = make_trajectory(0)
    task = replace(asked.task, prompt="State the answer to the following problem: 17 + 25 =")
    record(RunPaths(tmp_path), 1, "test", replace(asked, task=task))
    monkeypatch.setattr(trajectories, "_console", lambda: terminal.console(width=64))
    main(["list", "--log-path", str(tmp_path)])
    heading, row, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["episode", "reward", "prompt", "answer", "last_response"]
    assert "…" in row and ": 17 + 25 = " in row and "following" not in row


async def test_show_has_the_last_observation_and_a_time_that_can_be_read(tmp_path, capsys):
    ended = replace(make_trajectory(0), last_observation="You fell into a hole.")
    record(RunPaths(tmp_path), 1, "train", ended)
    shown = shown_of(capsys, tmp_path)
    assert "after the last action (the model did not see it)\nYou fell into a hole." in shown
    assert "started_at          2023-11-1" in shown


async def test_show_ends_with_what_the_judge_said_of_each_criterion(tmp_path, capsys):
    passed = {"criterion": "it is booked", "weight": 1.0, "verdict": "pass", "reason": "the page says so"}
    failed = {"criterion": "it is for two", "weight": 2.0, "verdict": "fail", "reason": "one guest"}
    detail = {"verdict": "failure", "reason": "one guest", "judge_model": "gpt-4o", "images": ["image 2"]}
    detail |= {"criteria": [passed, failed]}
    record(RunPaths(tmp_path), 1, "train", replace(make_trajectory(0, reward=0.0), reward_detail=detail))
    ending = (
        "--- judge gpt-4o: failure, by image 2\none guest\n"
        "pass it is booked\n     the page says so\n"
        "fail it is for two (weight 2)\n     one guest"
    )
    assert shown_of(capsys, tmp_path).rstrip().endswith(ending)


async def test_show_lists_the_iterations_of_an_ambiguous_key_with_the_choice(tmp_path, capsys):
    paths = RunPaths(tmp_path / "log")
    for iteration in (1, 3):
        record(paths, iteration, "train", make_trajectory(0, iteration=iteration))
    main(["show", "--log-path", str(paths.log_path), "task-0:0:0"])
    shown = capsys.readouterr()
    headings = [line for line in shown.out.splitlines() if line.startswith("===")]
    assert headings == ["=== 1 of 2: train iteration 1", "=== 2 of 2: train iteration 3"]
    assert shown.err == "task-0:0:0 was tried 2 times; to see one of them: --split train --iteration 3\n"
    main(["show", "--log-path", str(paths.log_path), "task-0:0:0", "--iteration", "3"])
    shown = capsys.readouterr()
    assert "===" not in shown.out and shown.err == ""


async def test_show_tells_of_a_failure(log, capsys):
    assert "EngineError: gone" in shown_of(capsys, log, "task-2:0:0")


async def test_show_of_an_unknown_episode_is_one_clear_line(log):
    with pytest.raises(ConfigError, match="episode x:0:0: not recorded here"):
        main(["show", "--log-path", str(log), "x:0:0"])


def test_an_export_of_lines_holds_everything(log, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    main(["export", "--log-path", str(log), "--format", "jsonl", "--out", str(out), "--split", "train"])
    assert capsys.readouterr().out == f"4 episodes to {out}\n"
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    second = make_trajectory(1, reward=0.0, difficulty="hard")
    assert rows[1] == json.loads(json.dumps(dataclasses.asdict(second)))


@pytest.mark.parametrize("form", ["csv", "parquet"])
async def test_tables_have_one_row_an_episode(log, tmp_path, form):
    import pandas as pd

    out = tmp_path / f"out.{form}"
    main(["export", "--log-path", str(log), "--format", form, "--out", str(out), "--split", "train"])
    frame = pd.read_csv(out) if form == "csv" else pd.read_parquet(out)
    assert list(frame["episode"]) == ["task-0:0:0", "task-1:0:0", "task-2:0:0", "task-3:0:0"]
    assert list(frame["steps"]) == [2, 1, 0, 1]
    assert frame["reward"].isna().tolist() == [False, False, True, False]
    assert frame["images"][0] == "/i/a.png"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log [bold]", out.name]


async def test_a_failed_export_leaves_no_file(log, tmp_path):
    shard = RunPaths(log).shard("train", 1)
    shard.write_bytes(shard.read_bytes() + b"{}\n")
    with pytest.raises(StoreError, match=":5: "):
        main(["export", "--log-path", str(log), "--format", "jsonl", "--out", str(tmp_path / "out")])
    assert [path.name for path in tmp_path.iterdir()] == ["log [bold]"]


def test_a_missing_log_path_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        main(["list", "--log-path", str(tmp_path / "none")])


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "examples" in capsys.readouterr().out


def test_a_key_with_a_line_break_is_one_row_and_can_be_shown_as_listed(tmp_path, capsys):
    odd = replace(make_trajectory(0), key=EpisodeKey("a\nfake:0:0", 0, 0))
    record(RunPaths(tmp_path), 1, "train", odd, make_trajectory(1))
    assert listed(capsys, tmp_path) == ["a\\nfake:0:0:0:0 train 1", "task-1:0:0 train 1"]
    lines = shown_of(capsys, tmp_path, "a\\nfake:0:0:0:0").splitlines()
    assert lines[0].endswith(" a") and lines[1] == "    fake:0:0:0:0"


def test_an_export_to_a_link_replaces_what_it_leads_to(log, tmp_path):
    target, stdout = tmp_path / "redirected", tmp_path / "stdout"  # as /dev/stdout leads to a file after `>`
    target.touch()
    stdout.symlink_to(target)
    main(["export", "--log-path", str(log), "--format", "csv", "--out", str(stdout)])
    assert stdout.is_symlink() and target.stat().st_size > 0
