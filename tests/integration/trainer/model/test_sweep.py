"""No causal architecture of the installed transformers is scored wrongly in silence."""

import re

import pytest
from transformers import __version__

from rl_agent.paths import PROJECT_ROOT
from tests.integration.trainer.model.sweep import NAMES, sweep, table
from tests.integration.trainer.ranks import single_rank

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore"),  # of the code of a hundred architectures
]


def test_every_architecture_is_right_or_refused_as_the_documentation_says(tmp_path):
    outcomes = {}
    with single_rank() as ranks:
        for index, name in enumerate(NAMES):
            outcomes[name] = sweep(name, ranks, tmp_path / str(index))
            print(f"{name}: {outcomes[name].kind} {outcomes[name].why}")
    print(table(outcomes))
    assert not [name for name, outcome in outcomes.items() if outcome.kind == "wrong"]
    page = (PROJECT_ROOT / "docs/reference/models.md").read_text()
    documented = re.search(r"transformers ([\d.]+)", page)
    assert documented is not None
    if documented[1] == __version__:
        assert table(outcomes) in page, "docs/reference/models.md is out of date; its table is printed above"
