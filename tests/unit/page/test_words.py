"""The part of a list's texts that differs is shown."""

import pytest

from rl_agent.page.words import SHOWN_CHARACTERS, differing

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
