"""Task files are replaced whole; a folder that cannot be written is one line that names the flag."""

import json

import pytest

from rl_agent.errors import ConfigError
from rl_agent.tasks.write import write_splits


def test_each_split_has_its_lines_in_a_file_of_its_own(tmp_path):
    write_splits(tmp_path / "new", {"train": [{"task_id": "ä"}, {"task_id": "b"}], "test": []})
    lines = (tmp_path / "new" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["task_id"] for line in lines] == ["ä", "b"]
    assert (tmp_path / "new" / "test.jsonl").read_text() == ""


def test_a_folder_that_is_a_file_is_refused_by_its_flag(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--out .*file: File exists$"):
        write_splits(tmp_path / "file", {"train": []})
