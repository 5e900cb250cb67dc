"""The reader of pages sees what is missing, types commands one by one, and leaves nothing running."""

import os

import pytest

from tests.integration.docs.reader import Reader, commands_of, missing_lines

PAGE = "docs/how-to/operate-a-pool.md"


def test_numbers_paths_and_addresses_of_a_promised_line_may_be_others():
    promised = "journal /home/user/pool.sqlite: 3 runs\nhttp://127.0.0.1:5000\n 1  0.522  -0.3\n 2  0.6  -0.1"
    assert missing_lines(promised, "journal /tmp/a: 1 runs\nelse\nhttp://10.0.0.1:2\n   7 1,204 +1.5\n") == []


@pytest.mark.parametrize("printed", ["tokens 5", "deaths 1\nengine a", "engines a\ndeaths 1"])
def test_a_promised_line_in_other_words_or_another_order_is_missing(printed):
    assert missing_lines("engine a\ndeaths 0", printed)


def test_dots_in_a_promised_line_are_anything():
    assert missing_lines("step 1: … engines", "step 127: reward 0.3, 2 engines (idle)") == []
    assert missing_lines("the fleet is …, its state", "the fleet is rl-85d13012, its state") == []


def test_a_block_is_typed_by_command_with_loops_and_long_lines_whole():
    block = "# first\na \\\n  b\nfor x in 1 2; do\n  echo $x\ndone\ncat <<'END'\ntext\nEND\n"
    assert commands_of(block) == ["a \\\n  b", "for x in 1 2; do\n  echo $x\ndone", "cat <<'END'\ntext\nEND"]


def test_a_text_to_be_replaced_that_the_page_lacks_fails(tmp_path):
    with pytest.raises(AssertionError, match=r"operate-a-pool.md lacks 'gone words'"):
        Reader(PAGE, tmp_path, {":5000": ":1", "gone words": "x"})


def test_a_command_left_running_is_ended_with_all_that_it_started(tmp_path):
    reader = Reader(PAGE, tmp_path)
    with reader.leaves_running("sleep 600 & echo begun; wait") as running:
        running.wait_for("begun", 20)
    assert running.process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(running.process.pid, 0)
