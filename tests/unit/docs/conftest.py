"""Files that a reader of the pages has written before a command is typed."""

import sys

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.unit.docs.documented_blocks import blocks

OWN_RULE = PROJECT_ROOT / "docs" / "how-to" / "place-requests-by-your-own-rule.md"


@pytest.fixture
def own_policies(tmp_path, monkeypatch):
    """`my_policies.py` lies where Python looks for modules."""
    (tmp_path / "my_policies.py").write_text(blocks(OWN_RULE, "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_policies", None)
