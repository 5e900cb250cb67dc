"""OpenR1-Math-220k in its own schema becomes two task files."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_agent.cli.openr1 import main
from rl_agent.config.sections.env import EnvConfig
from rl_agent.errors import ConfigError, UsageError
from rl_agent.tasks.load import load_tasks

ENV_CONFIG = EnvConfig.model_construct(kinds={"math": "any:Class"}, default_env="none")
TEXT = pa.string()
TEXTS = ("problem", "solution", "answer", "problem_type", "question_type", "source", "uuid")
SCHEMA = pa.schema(
    [
        *((name, TEXT) for name in TEXTS),
        ("is_reasoning_complete", pa.list_(pa.bool_())),
        ("generations", pa.list_(TEXT)),
        ("correctness_math_verify", pa.list_(pa.bool_())),
        ("correctness_llama", pa.list_(pa.bool_())),
        ("finish_reasons", pa.list_(TEXT)),
        ("correctness_count", pa.int64()),
        ("messages", pa.list_(pa.struct([("content", TEXT), ("role", TEXT)]))),
    ]
)


def row(number, *, right=2, **fields):
    problem = f"What is ${number} + \\frac{{1}}{{2}}$?"
    return {
        "problem": problem,
        "solution": "Add them.",
        "answer": f"{number}.5",
        "problem_type": "Algebra",
        "question_type": "math-word-problem",
        "source": "olympiads",
        "uuid": f"uuid-{number}",
        "is_reasoning_complete": [True, True],
        "generations": ["<think>…</think> \\boxed{1}", "…"],
        "correctness_math_verify": [True, right == 2],
        "correctness_llama": None,
        "finish_reasons": ["stop", "stop"],
        "correctness_count": right,
        "messages": [{"content": problem, "role": "user"}, {"content": "…", "role": "assistant"}],
    } | fields


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return path


def prepare(source, out, *flags):
    assert main(["--source", str(source), "--out", str(out), *flags]) == 0
    return [load_tasks(out / f"{split}.jsonl", ENV_CONFIG) for split in ("train", "test")]


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "train-00000-of-00001.parquet", [row(number) for number in range(50)])


def test_the_files_hold_math_tasks_with_the_datasets_answer(source, tmp_path):
    train, test = prepare(source, tmp_path / "out", "--test-fraction", "0.2")

    assert (len(train), len(test)) == (40, 10)
    (task,) = [task for task in train + test if task.extra["uuid"] == "uuid-7"]
    assert task.prompt.startswith("What is $7 + \\frac{1}{2}$?\n\nPlease reason step by step")
    assert (task.env, task.answer, task.difficulty) == ("math", "7.5", "easy")
    assert task.extra["problem_type"] == "Algebra"


def test_the_same_seed_writes_the_same_bytes_and_another_seed_does_not(source, tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        prepare(source, tmp_path / name, "--seed", seed)
    read = {name: (tmp_path / name / "train.jsonl").read_bytes() for name in "abc"}

    assert read["a"] == read["b"] != read["c"]


def test_a_folder_of_files_in_any_cut_gives_the_same_tasks(source, tmp_path):
    rows = [row(number) for number in range(50)]
    write(tmp_path / "cut" / "data" / "train-0.parquet", rows[30:])
    write(tmp_path / "cut" / "data" / "train-1.parquet", rows[:30])

    assert prepare(tmp_path / "cut", tmp_path / "b") == prepare(source, tmp_path / "a")


def test_unverifiable_rows_are_dropped_and_reported(tmp_path, capsys):
    rows = [
        *[row(number) for number in range(10)],
        row(10, answer=None),
        row(11, answer=" "),
        row(12, answer="notfound"),
        row(13, answer="proof"),
        row(14, question_type="proof", answer="1"),
        row(15, problem=None),
        row(3),
    ]
    train, test = prepare(write(tmp_path / "a.parquet", rows), tmp_path / "out")

    assert len(train) + len(test) == 10
    printed = capsys.readouterr().out
    assert "17 rows read" in printed
    assert "3 dropped: no answer" in printed
    assert "2 dropped: a proof, which has no answer to compare with" in printed
    assert "1 dropped: no problem" in printed
    assert "1 dropped: the same problem again" in printed


def test_difficulty_follows_how_often_the_traces_were_right(tmp_path):
    rows = [row(0, right=2), row(1, right=1), row(2, right=0), row(3, is_reasoning_complete=None)]
    train, test = prepare(write(tmp_path / "a.parquet", rows), tmp_path / "out")

    difficulties = {task.extra["uuid"]: task.difficulty for task in train + test}
    assert difficulties == {"uuid-0": "easy", "uuid-1": "medium", "uuid-2": "hard", "uuid-3": "medium"}


def test_a_limit_bounds_both_files_together_and_keeps_test_apart(source, tmp_path, capsys):
    _, all_test = prepare(source, tmp_path / "all", "--test-fraction", "0.2")
    train, test = prepare(source, tmp_path / "out", "--limit", "20", "--test-fraction", "0.2")

    assert (len(train), len(test)) == (16, 4)
    assert {task.task_id for task in test} <= {task.task_id for task in all_test}
    assert "30 dropped: over --limit" in capsys.readouterr().out


def test_a_hub_name_is_read_through_datasets(source, tmp_path, monkeypatch):
    import datasets

    requests = []

    def load_dataset(name, subset=None, *, split):
        requests.append((name, subset, split))
        return datasets.Dataset(pq.read_table(source))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    from_hub = prepare("open-r1/OpenR1-Math-220k", tmp_path / "a")
    prepare("open-r1/OpenR1-Math-220k", tmp_path / "c", "--subset", "extended")
    assert requests == [("open-r1/OpenR1-Math-220k", subset, "train") for subset in (None, "extended")]
    assert from_hub == prepare(source, tmp_path / "b")


def test_a_source_that_is_not_the_dataset_is_one_clear_line(source, tmp_path):
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"problem": ["1"], "answer": ["1"]}), other)
    text = tmp_path / "text.parquet"
    text.write_text("not parquet")
    (tmp_path / "empty").mkdir()
    single = write(tmp_path / "single.parquet", [row(1)])

    for path, message in [
        (other, "lacks the columns correctness_count"),
        (text, "Parquet magic bytes not found"),
        (tmp_path / "empty", "no .parquet file in this folder"),
        (tmp_path / "nowhere" / "at all", "neither a file, nor a folder, nor a hub name"),
        (single, "fewer than two problems"),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            main(["--source", str(path), "--out", str(tmp_path / "out")])
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags", [["--limit", "1"], ["--limit", "-5"], ["--test-fraction", "0"], ["--test-fraction", "1"]]
)
def test_numbers_out_of_range_are_usage_errors(flags):
    with pytest.raises(UsageError, match=flags[0]):
        main(["--source", "a/b", "--out", "c", *flags])


def test_a_subset_is_of_the_hub(source, tmp_path):
    with pytest.raises(UsageError, match="--subset extended"):
        main(["--source", str(source), "--out", str(tmp_path / "out"), "--subset", "extended"])
