"""A library that is missing is named with the extra that installs it."""

import pytest

from rl_agent.system.extras import missing_library

REQUIREMENTS = (
    "aiohttp",
    'pyarrow; extra == "weights"',
    'pyarrow; extra == "page"',
    'mcp-types; extra == "tools"',
)


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pyarrow.parquet", "weights"),
        ("mcp_types", "tools"),
        ("aiohttp", None),
        ("my_module", None),
        (None, None),
    ],
)
def test_a_missing_library_is_reported_with_its_first_extra(module, extra):
    problem = missing_library(ModuleNotFoundError("No module", name=module), REQUIREMENTS)
    assert (problem is None) if extra is None else f"rl-agent[{extra}]" in problem
