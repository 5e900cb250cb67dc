"""The page of a run: its address comes first, and whatever becomes of it, the run goes on."""

import re
import socket
import urllib.request
from pathlib import Path

from tests.shell.conftest import wait_until

ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "eval-only", "--max-iterations", "1")


def test_the_address_is_printed_and_shows_the_run_while_it_goes_on(harness):
    keys = dict.fromkeys(("OPENAI_API_KEY", "HF_TOKEN", "MY_KEY_OF_WANDB", "MINE"), "secret")
    own = ("wandb.wandb_key_env_var=MY_KEY_OF_WANDB", "openai_config.openai_api_key_env_var=MINE")
    keys["RL_AGENT_POOL_TOKEN"] = "asks the manager"
    run = harness.start(*ROLLOUT, "page.port=auto", *own, FAKE_SERVE="hang", **keys)
    wait_until(lambda: " page: " in harness.stderr, harness=harness)
    url = re.search(r" page: (http://127.0.0.1:\d+)\n", harness.stderr)[1]
    with urllib.request.urlopen(f"{url}/", timeout=20) as answer:
        assert b'<h2 id="state">State' in answer.read() and run.poll() is None
    (page,) = [pid for pid, words in harness.processes().items() if "rl_agent.cli page " in words]
    variables = Path(f"/proc/{page}/environ").read_text()
    assert "secret" not in variables and "RL_AGENT_POOL_TOKEN=asks the manager" in variables
    run.terminate()
    assert run.wait(60) == 143 and harness.processes() == {}


def test_a_run_whose_page_cannot_be_served_says_so_and_goes_on(harness):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = harness.run(*ROLLOUT, f"page.port={taken.getsockname()[1]}")
    assert done.returncode == 0 and harness.verbs == ["serve", "rollout"]
    assert "run: no page: " in done.stderr and "is in use" in done.stderr
