"""Words are found wherever they stand, whole, and a question is never more than words."""

import pytest

from rl_agent.page.words import SHOWN_CHARACTERS, differing, folded, needle_of


def has(text, *words):
    return all(needle_of(word) in folded(text) for word in words)


def test_words_are_found_whole_in_any_case_and_phrases_in_their_order():
    text = "The Café has 3.14 apples,\ttask-7 STRASSE"
    assert has(text, "cafe", "CAFÉ", "3.14", "task-7", "the café has", "apples", "has", "the", "straße")
    assert not any(has(text, word) for word in ("apple", "task-70", "has the", "4", "ask", "caf"))


def test_a_star_stands_for_any_ending_of_a_longer_word():
    assert has("apple pies", "appl*", "apple*", "apple pie*", "app*")
    assert not has("apple pies", "ple*") and not has("apple pies", "ap*")


def test_writing_without_spaces_is_found_by_any_of_its_characters():
    assert has("価格は千円です。", "千円", "格", "です") and not has("価格は千円です", "円千")
    assert has("가격은 천원", "천") and has("हिन्दी में", "हिन्दी")


@pytest.mark.parametrize("text", ['"', 'a" OR "b', "%", "_", "*", "a\0b", "\ud800", "(", "-a", "a" * 99999])
def test_a_question_is_words_and_no_expression(text):
    for question in (text, f"{text}*"):
        assert not needle_of(question) or not has("zebra", question)
        assert not needle_of(text) or has(f"x {text} y", text)


@pytest.mark.parametrize("text", ["", " ", "?!", "\0", "*", "\u0301"])
def test_a_text_without_letter_and_digit_asks_for_nothing(text):
    assert needle_of(text) == ""


SAME = "Give the answer to the following problem: "


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([SAME + "12 + 3 =", SAME + "12 - 4 ="], ["… + 3 =", "… - 4 ="]),
        ([SAME + "125", SAME + "124"], ["… 125", "… 124"]),
        (["red. Think step by step", "blue. Think step by step"], ["red. …", "blue. …"]),
        ([SAME + "a\nin one word, please", SAME + "b\nin one word, please"], ["… a …", "… b …"]),
        ([SAME + "one", SAME + "one two"], ["… one", "… one two"]),
        (["What is red?", "What is blue?"], ["What is red?", "What is blue?"]),
        ([SAME, SAME], [SAME.strip()] * 2),
        ([], []),
    ],
)
def test_words_that_all_texts_begin_or_end_with_are_elided(texts, shown):
    assert differing(texts) == shown


def test_a_long_difference_is_cut():
    long = "x" * (SHOWN_CHARACTERS + 1)
    assert differing([SAME + long, SAME + "y"]) == ["… " + "x" * SHOWN_CHARACTERS + "…", "… y"]
