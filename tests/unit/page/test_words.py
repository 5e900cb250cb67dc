"""Words of episodes are found wherever they stand, as words, and a question is never more than words."""

import sqlite3

import pytest

from rl_agent.page.words import Words, expression_of, ids_of


@pytest.fixture
def words(tmp_path):
    made = Words(tmp_path / "words #1?.sqlite", 7, is_new=True)
    yield made
    made.close()


def looked_for(words, *asked, first=0, last=9):
    return list(words.find(expression_of(asked), first, last))


def test_words_are_found_whole_in_any_case_and_phrases_in_their_order(words):
    words.add([(0, "The Café has 3.14 apples, task-7"), (1, "apple pies; task-70 has"), (2, "")])
    assert looked_for(words, "cafe") == [0] == looked_for(words, "CAFÉ") == looked_for(words, "3.14")
    assert looked_for(words, "apple") == [1] and looked_for(words, "appl*") == [0, 1]
    assert looked_for(words, "task-7") == [0] and looked_for(words, "has", "task") == [0, 1]
    assert looked_for(words, "the café has") == [0] and looked_for(words, "has the") == []


def test_writing_without_spaces_is_found_by_any_of_its_characters(words):
    words.add([(0, "価格は千円です"), (1, "가격은 천원"), (2, "价格是一百元")])
    assert looked_for(words, "千円") == [0] and looked_for(words, "円千") == []
    assert (
        looked_for(words, "천") == [1]
        and looked_for(words, "百元") == [2]
        and looked_for(words, "格") == [0, 2]
    )


@pytest.mark.parametrize(
    "text",
    [
        '"',
        '""',
        'a" OR "b',
        "NEAR(a b)",
        "text:a",
        "a AND NOT b",
        "*",
        "^a",
        "a\0b",
        "\ud800",
        "(",
        "-a",
        "a" * 99999,
    ],
)
def test_a_question_is_words_and_no_expression(words, text):
    words.add([(0, "zebra"), (1, text)])
    for asked in (text, f"{text}*"):
        expression = expression_of([asked])
        assert not expression or 0 not in words.find(expression, 0, 9)


def test_an_id_is_never_given_twice_and_tells_the_iteration(words):
    assert words.next_id(3) == ids_of(3, 3)[0]
    words.add([(words.next_id(3), "a"), (words.next_id(4), "a")])
    assert words.next_id(3) == ids_of(3, 3)[0] + 1
    assert looked_for(words, "a", first=4) == [ids_of(4, 4)[0]] and looked_for(words, "a", last=2) == []


def test_who_reads_is_not_held_up_by_who_writes(words):
    words.add([(0, "a")])
    words._connection.execute("BEGIN IMMEDIATE")
    assert looked_for(words, "a") == [0]
    words._connection.rollback()


def test_what_is_no_index_of_words_is_an_error(tmp_path):
    (tmp_path / "words").write_bytes(b"nothing of ours" * 100)
    with pytest.raises(sqlite3.Error):
        Words(tmp_path / "words", 7, is_new=True)


def test_words_of_another_index_are_an_error(words, tmp_path):
    words.close()
    Words(tmp_path / "words #1?.sqlite", 7, is_new=False).close()
    with pytest.raises(sqlite3.Error, match="another index"):
        Words(tmp_path / "words #1?.sqlite", 8, is_new=False)
