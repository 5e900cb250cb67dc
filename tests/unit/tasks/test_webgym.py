"""WebGym's task files become tasks of this project."""

import json
from collections import Counter

import pytest

from rl_agent.cli import webgym as verb
from rl_agent.errors import ConfigError
from rl_agent.tasks.webgym import adapt, facts

LINE = {
    "task_id": 7,
    "task_name": "Find the opening hours.",
    "domain": "travel",
    "subdomain": "museums",
    "website": "museum.example.org",
    "difficulty": 5,
    "evaluator_reference": [{"facts": ["opens at 9", "closed on Monday"]}, "names the source"],
    "definite_answer": None,
}


def adapted(*lines):
    dropped = Counter()
    return list(adapt(enumerate(lines, start=1), dropped)), dropped


def test_a_line_names_its_page_its_facts_and_its_difficulty():
    (task,), dropped = adapted(LINE)
    assert task == {
        "task_id": "webgym-7",
        "prompt": "Find the opening hours.",
        "env": "web",
        "difficulty": 5,
        "url": "https://museum.example.org",
        "answer": None,
        "rubric": ["opens at 9", "closed on Monday", "names the source"],
        "domain": "travel",
        "subdomain": "museums",
    }
    assert not dropped


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task_name": " "}, "no task_name"),
        ({"website": None}, "no website"),
        ({"website": "file:///etc/passwd"}, "no website"),
        ({"website": "a b"}, "no website"),
    ],
)
def test_a_line_that_cannot_be_a_task_is_dropped_with_its_reason(change, reason):
    tasks, dropped = adapted(LINE | change)
    assert not tasks and dropped == {reason: 1}


def test_the_first_of_two_tasks_with_one_name_is_kept():
    tasks, dropped = adapted(LINE, LINE | {"task_name": "another"})
    assert [task["prompt"] for task in tasks] == [LINE["task_name"]]
    assert dropped == {"the same task_id again": 1}


def test_facts_are_found_in_every_shape():
    assert facts("one") == ["one"]
    assert facts(None) == facts(3) == facts([]) == []
    assert facts([["a"], {"g": {"f": ["b", "c"]}}]) == ["a", "b", "c"]


def test_the_verb_writes_both_files_and_tells_what_it_dropped(tmp_path, capsys):
    for split in ("train", "test"):
        lines = [LINE, LINE | {"task_id": 8, "website": ""}]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert verb.main(["--source", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "2 dropped: no website" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "test.jsonl").read_text())["task_id"] == "webgym-7"


@pytest.mark.parametrize("content", ["{", "[]", "", '{"task_name": "a"}'])
def test_a_file_that_holds_no_tasks_is_refused_by_name(tmp_path, content):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"train\.jsonl"):
        verb.main(["--source", str(tmp_path), "--out", str(tmp_path / "out")])


def test_a_source_without_files_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        verb.main(["--source", str(tmp_path), "--out", str(tmp_path / "out")])
