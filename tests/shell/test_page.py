"""The page of a run: its address comes first, and whatever becomes of it, the run goes on."""

import re
import socket
import urllib.request

from tests.shell.conftest import wait_until

ROLLOUT = ("--rl-phase", "rollout", "--rollout-split", "eval-only", "--max-iterations", "1")


def test_the_address_is_printed_and_shows_the_run_while_it_goes_on(harness):
    run = harness.start(*ROLLOUT, "page.port=auto", FAKE_SERVE="hang")
    wait_until(lambda: "its page: " in harness.stderr, harness=harness)
    url = re.search(r"its page: (http://127.0.0.1:\d+)\n", harness.stderr)[1]
    with urllib.request.urlopen(f"{url}/", timeout=20) as answer:
        assert b'<h2 id="state">State' in answer.read() and run.poll() is None
    run.terminate()
    assert run.wait(60) == 143 and harness.processes() == {}


def test_a_run_whose_page_cannot_be_served_says_so_and_goes_on(harness):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = harness.run(*ROLLOUT, f"page.port={taken.getsockname()[1]}")
    assert done.returncode == 0 and harness.verbs == ["serve", "rollout"]
    assert "run: no page: " in done.stderr and "is in use" in done.stderr
