"""The task files that `data/make_tasks.py` writes."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from rl_agent.paths import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "data"))

import make_tasks
from held_out import in_order
from teach_base_model import Recipe

COMMITTED = PROJECT_ROOT / "data" / "reasoning_gym"


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart")
    make_tasks.main(["quickstart", "--out", str(folder)])
    return folder


@pytest.fixture(params=["examples", "quickstart"])
def folder(request) -> Path:
    return COMMITTED if request.param == "examples" else request.getfixturevalue("quickstart")


def test_train_and_test_share_no_question(folder):
    train, test = (
        {task["prompt"] for task in read_lines(folder / f"{split}.jsonl")} for split in ("train", "test")
    )
    assert train and test and not train & test


def test_no_test_task_is_a_training_task_with_its_numbers_in_another_order(folder):
    train, test = (
        {
            tuple(sorted(re.findall(r"(?:- )?\w+", task["prompt"])))
            for task in read_lines(folder / f"{split}.jsonl")
        }
        for split in ("train", "test")
    )
    assert not train & test


def test_no_task_of_the_quickstart_was_taught_to_its_model_in_either_order(quickstart):
    recipe = Recipe(seed=0)
    lessons = make_tasks.make_tasks(make_tasks.PRESETS["quickstart"].sources, "teach", recipe.problems, 0)
    taught = {in_order(task["prompt"]) for task in lessons}
    commands = [
        in_order(task["prompt"])
        for split in ("train", "test")
        for task in read_lines(quickstart / f"{split}.jsonl")
    ]
    assert not taught.intersection(commands)


@pytest.mark.parametrize(
    ("question", "same"),
    [
        ("problem: 30 + 12 =", "problem: 12 + 30 ="),
        ("problem: 90 - 20 =", "problem: 20 - 90 ="),
        ("problem: 54 - 87 - 85 + 43 =", "problem: 43 + 54 - 85 - 87 ="),
        ("problem: -5 + 55 + 22 =", "problem: 5 + 22 - 55 ="),
        ("numbers: 621, 14, 931. Give", "numbers: 14, 621, 931. Give"),
        ("multiplication: 81 * 27. Give", "multiplication: 27 * 81. Give"),
        ("Spell this word: 7up", "Spell this word: 7up"),
    ],
)
def test_numbers_of_sums_and_lists_are_put_in_order(question, same):
    assert in_order(question) == same


def test_every_task_id_occurs_once_in_both_files_together(folder):
    ids = Counter(
        task["task_id"] for split in ("train", "test") for task in read_lines(folder / f"{split}.jsonl")
    )
    assert ids.most_common(1)[0][1] == 1


def test_reasoning_gyms_verifier_rewards_the_stored_answer_and_not_another(folder):
    import reasoning_gym

    for task in read_lines(folder / "test.jsonl"):
        score = reasoning_gym.get_score_answer_fn(task["dataset"])
        entry = {"question": task["prompt"], "answer": task["answer"], "metadata": task["entry_metadata"]}
        assert score(task["answer"], entry) == 1.0, task["task_id"]
        assert score("no idea", entry) < 1.0, task["task_id"]


def test_the_committed_tasks_are_easy_and_hard_and_of_at_least_three_kinds():
    for split in ("train", "test"):
        tasks = read_lines(COMMITTED / f"{split}.jsonl")
        assert len({task["dataset"] for task in tasks}) >= 3
        assert {"easy", "hard"} <= {task["difficulty"] for task in tasks}


def test_the_committed_files_are_what_the_script_writes(tmp_path):
    make_tasks.main(["examples", "--out", str(tmp_path)])
    for name in ("train.jsonl", "test.jsonl"):
        assert (tmp_path / name).read_bytes() == (COMMITTED / name).read_bytes()


def test_another_seed_draws_other_tasks_and_keeps_the_splits_apart(quickstart, tmp_path):
    make_tasks.main(["quickstart", "--out", str(tmp_path), "--seed", "1", "--train-size", "300"])
    first = {task["prompt"] for task in read_lines(quickstart / "test.jsonl")}
    assert len(read_lines(tmp_path / "train.jsonl")) == 300
    assert not first & {task["prompt"] for task in read_lines(tmp_path / "train.jsonl")}
    assert first != {task["prompt"] for task in read_lines(tmp_path / "test.jsonl")}


def test_a_source_of_the_command_line_replaces_the_presets(tmp_path):
    options = ["--train-size", "6", "--test-size", "2", "--source", "gcd:hard:max_value=99,min_numbers=2"]
    make_tasks.main(["examples", "--out", str(tmp_path), *options])
    tasks = read_lines(tmp_path / "train.jsonl")
    assert {(task["dataset"], task["difficulty"]) for task in tasks} == {("gcd", "hard")}
    assert max(number for task in tasks for number in task["entry_metadata"]["numbers"]) <= 99


def test_asking_for_more_questions_than_exist_says_so(tmp_path):
    source = "chain_sum:easy:min_terms=2,max_terms=2,min_digits=1,max_digits=1"
    with pytest.raises(SystemExit, match=r"chain_sum \(easy\) has no more train questions after \d+ tasks"):
        make_tasks.main(["quickstart", "--out", str(tmp_path), "--source", source])


def test_a_question_belongs_to_one_split_for_good():
    assert make_tasks.split_of("1 + 1 =") == make_tasks.split_of("1 + 1 =")
    shares = Counter(make_tasks.split_of(f"question {i}") for i in range(5000))
    assert {split: round(count / 5000, 1) for split, count in shares.items()} == {
        "train": 0.5,
        "test": 0.1,
        "teach": 0.4,
    }


def test_another_environment_and_an_ending_are_written_into_each_task(tmp_path):
    words = ["--env", "math", "--ending", "Answer with the number alone."]
    words += ["--source", "chain_sum:easy:min_terms=2,max_terms=2", "--train-size", "2", "--test-size", "1"]
    make_tasks.main(["examples", "--out", str(tmp_path), *words])
    tasks = [*read_lines(tmp_path / "train.jsonl"), *read_lines(tmp_path / "test.jsonl")]
    assert [task["env"] for task in tasks] == ["math"] * 3
    assert all(task["prompt"].endswith("= Answer with the number alone.") for task in tasks)
