"""docs/how-to/decide-before-renting.md, typed as it stands, with fewer and shorter responses."""

import pytest

from tests.integration.docs.reader import Reader
from tests.unit.docs.documented_blocks import sentences

PAGE = "docs/how-to/decide-before-renting.md"
FEW = "hours=0.1 prompts=4"
SHORT = "mean_tokens=500 longest=1024"
SETUPS = ("static", "on demand", "elastic", "elastic recompute", "elastic hybrid", "autoscaled")


@pytest.fixture
def reader(tmp_path):
    instead = {
        "hours=1 model": f"{FEW} {SHORT} model",
        "what-if engine_price=8.4": f"what-if {FEW} {SHORT} engine_price=8.4",
        "what-if machines=2": f"what-if {FEW} {SHORT} machines=2",
        "what-if mean_tokens=2000": f"what-if {FEW} mean_tokens=2000",
        "what-if max_staleness=1": f"what-if {FEW} {SHORT} max_staleness=1",
        "what-if turns=8": f"what-if {FEW} turns=8",
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    page_reader.environment["COLUMNS"] = "150"  # in a narrower terminal the setups are columns
    return page_reader


def test_every_setup_of_the_page_is_a_row_with_the_explained_columns(reader):
    printed = reader.types(reader.block("python -m rl_agent.cli what-if --trace"))
    rows = [line for line in printed.splitlines() if line.startswith(" ")]
    assert [row[1:].partition("  ")[0].strip() for row in rows] == ["setup", *SETUPS]
    text = sentences(reader.page)
    for name in SETUPS:
        assert f"`{name.replace(' ', '_')}`" in text
    for column in ("tokens/s", "lost tokens", "re-prefilled", "trainer waits", "engines idle"):
        assert f" {column} " in rows[0] and f"**{column}**" in text


def test_each_question_is_answered_for_every_setup(reader):
    block = "python -m rl_agent.cli what-if engine_price"
    answers = [reader.types(question) for question in reader.commands(block)]
    assert len(set(answers)) == 5
    for answer in answers:
        assert all(f"\n {name} " in answer for name in SETUPS)
