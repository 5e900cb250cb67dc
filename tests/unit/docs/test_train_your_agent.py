"""docs/how-to/train-your-agent.md shows the agent and the keys that there are."""

import ast
import re

from rl_agent.env.agent.settings import AgentSettings
from rl_agent.paths import PROJECT_ROOT
from tests.unit.docs.documented_blocks import blocks

PAGE = PROJECT_ROOT / "docs" / "how-to" / "train-your-agent.md"
EXAMPLES = PROJECT_ROOT / "scripts" / "examples" / "agents"


def test_the_pages_agent_is_the_example():
    example = (EXAMPLES / "langgraph_agent.py").read_text()
    docstring = ast.get_docstring(ast.parse(example), clean=False)
    assert example.partition(f'"""{docstring}"""')[2].strip() == blocks(PAGE, "python")[0].strip()


def test_the_page_has_every_setting_of_an_agent():
    settings = PAGE.read_text().partition("## Settings")[2].partition("## The reward")[0]
    keys = re.findall(r"^\| `(\w+)` \|", settings, re.MULTILINE)
    assert sorted(keys) == sorted(AgentSettings.model_fields)


def test_examples_of_agents_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) == 5
    assert max(lengths.values()) <= 66
