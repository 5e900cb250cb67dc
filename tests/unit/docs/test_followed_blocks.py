"""Every block of commands of every page is typed by a test, or is listed with the reason why it is not.

`followed_blocks.yaml` is the list; the tests that type blocks are in tests/integration, most in `docs`.
"""

from pathlib import Path

import pytest
import yaml

from rl_agent.paths import PROJECT_ROOT
from tests.unit.docs.documented_blocks import OF_COMMANDS, PAGES, blocks

LIST = Path(__file__).with_name("followed_blocks.yaml")
FOLLOWED_BY: dict[str, dict[str, str]] = yaml.safe_load(LIST.read_text())
TYPED_BY_BEGINNING = "tests/integration/docs/"
"""Tests in this folder ask for a block by how it begins, in the words of the list."""

TESTS = [
    (page, start, by)
    for page, starts in FOLLOWED_BY.items()
    for start, by in starts.items()
    if by.startswith("tests/")
]


def commands_of(page: Path) -> list[str]:
    return [text.lstrip() for text in blocks(page, *OF_COMMANDS)]


def test_the_list_has_every_page_with_commands_and_no_other():
    assert set(FOLLOWED_BY) == {str(page.relative_to(PROJECT_ROOT)) for page in PAGES if commands_of(page)}


@pytest.mark.parametrize("page", FOLLOWED_BY)
def test_every_block_is_followed_by_a_test_or_listed_with_a_reason(page):
    starts = FOLLOWED_BY[page]
    listed = {
        text: [start for start in starts if text.startswith(start)]
        for text in commands_of(PROJECT_ROOT / page)
    }
    unclear = {text: places for text, places in listed.items() if len(places) != 1}
    assert not unclear, f"{LIST.name} has to list these blocks of {page}, each once"
    assert sorted(places[0] for places in listed.values()) == sorted(starts), (
        f"{LIST.name} lists what {page} has not"
    )


@pytest.mark.parametrize(("page", "start", "by"), TESTS)
def test_the_test_that_follows_a_block_exists_and_reads_its_page(page, start, by):
    text = (PROJECT_ROOT / by).read_text()
    script = start.partition("bash scripts/examples/")[2]
    assert Path(page).name in text or (script and script in text) or page == "README.md", (
        f"{by} does not read {page}"
    )
    if by.startswith(TYPED_BY_BEGINNING):
        assert f'"{start}"' in text, f"{by} does not type the block of {page} that begins with {start!r}"
