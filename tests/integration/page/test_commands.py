"""The commands of docs/how-to/look-at-a-run.md do what it says, over a folder of recorded trajectories."""

import shlex
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from rl_agent.paths import PROJECT_ROOT, RunPaths
from tests.support.certificate import make_certificate
from tests.unit.docs.documented_blocks import blocks
from tests.unit.page.stores import record
from tests.unit.rollout.trajectories_made import make_trajectory

PAGE = PROJECT_ROOT / "docs" / "how-to" / "look-at-a-run.md"
LINES = [line for block in blocks(PAGE, "bash") for line in block.replace("\\\n", " ").splitlines()]
SERVING = [line for line in LINES if "rl_agent.cli page" in line]
BEFORE = [line for line in LINES if line.startswith(("openssl", "chmod"))]
ELSEWHERE = [line for line in LINES if line.startswith(("ssh -L", "RL_AGENT_PAGE_SCREENSHOTS"))]
"""The first needs another machine; the second runs the other tests of this folder."""


def test_every_command_of_the_page_is_followed_here():
    assert sorted([*SERVING, *BEFORE, *ELSEWHERE]) == sorted(LINES) and len(SERVING) == 3 and len(BEFORE) == 2


@pytest.fixture
def place(tmp_path):
    """The folders that the page names, each with a run, and a certificate."""
    for name in ("exp1", "exp2"):
        (tmp_path / name).mkdir()
        record(RunPaths(tmp_path / name), 1, make_trajectory(0))
    certificate, key = make_certificate(tmp_path)
    certificate.rename(tmp_path / "page.pem")
    key.rename(tmp_path / "page.key")
    (tmp_path / "page.key").chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("line", SERVING, ids=lambda line: " ".join(line.split()[4:])[:60])
def test_it_prints_its_address_shows_the_runs_and_ends_at_ctrl_c(line, place):
    if "--token-file" in line:
        subprocess.run(["bash", "-ec", "\n".join(BEFORE)], cwd=place, check=True)
    for named in ("/home/user", "/shared"):
        line = line.replace(named, str(place))
    _, *words = shlex.split(line)
    process = subprocess.Popen(
        [sys.executable, *words], cwd=place, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    with process as page:
        try:
            address = page.stdout.readline().split()[-1].replace("0.0.0.0", "127.0.0.1")
            trusted = ssl.create_default_context(cafile=place / "page.pem")
            request = urllib.request.Request(f"{address}/compare")
            if "--token-file" in line:
                assert address.startswith("https://")
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    urllib.request.urlopen(request, timeout=30, context=trusted)
                request.add_header("Authorization", f"Bearer {(place / 'page.token').read_text().strip()}")
            with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
                shown = answer.read().decode()
            assert ("exp1" in shown, "exp2" in shown) == (True, "exp2" in line)
            page.send_signal(2)
            assert page.wait(30) == 0
        finally:
            page.kill()
