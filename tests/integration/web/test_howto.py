"""docs/how-to/bring-your-own-site.md does what it says, with the code that stands in it."""

import json
import subprocess
import sys

import pytest

from rl_agent.env.web.environment import WebEnvironment
from rl_agent.paths import PROJECT_ROOT
from rl_agent.types import Task
from tests.unit.docs.documented_blocks import blocks

PAGE = PROJECT_ROOT / "docs" / "how-to" / "bring-your-own-site.md"


@pytest.mark.extended
def test_the_page_makes_a_site_that_can_be_played(tmp_path):
    folder = tmp_path / "my_sites" / "doors"
    folder.mkdir(parents=True)
    site, play = blocks(PAGE, "python")
    (folder / "site.py").write_text(site)
    task = json.loads(blocks(PAGE, "json")[0])
    WebEnvironment.check_task(
        Task("doors-1", "p", "web", "easy", extra=task), {"sites": {"doors": str(folder)}}
    )
    done = subprocess.run(
        [sys.executable, "-c", play], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Goal: Open the ") and done.stdout.endswith(" 1.0\n")
