"""docs/how-to/environments-on-other-machines.md with both servers on this machine, two workers each."""

import pytest

from tests.integration.docs.reader import Reader
from tests.support.ports import quiet_ports

PAGE = "docs/how-to/environments-on-other-machines.md"


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_the_episodes_of_a_run_live_on_both_servers_which_drain_at_term(tmp_path, small):
    first, second = quiet_ports(2)
    instead = {
        "10.0.0.7:5100": f"127.0.0.1:{first}",
        "10.0.0.8:5100": f"127.0.0.1:{second}",
        "0.0.0.0:5100": f"0.0.0.0:{first}",
        "--workers 16": "--workers 2",
        "run.sh …": (
            "run.sh --data-path /home/user --log-path /home/user/exp1 --rl-phase rollout"
            " --rollout-split train-only --max-iterations 1 " + small.run()
        ),
    }
    reader = Reader(PAGE, tmp_path, instead)
    small.give_tasks(reader)
    token, serve = reader.commands("(umask 077")

    reader.types(token)
    assert (reader.checkout / "env.token").stat().st_mode & 0o777 == 0o600
    with (
        reader.leaves_running(serve) as first_server,
        reader.leaves_running(serve.replace(str(first), str(second))) as other,
    ):
        for server, port in ((first_server, first), (other, second)):
            server.wait_for(f"http://0.0.0.0:{port}", 60)
            assert "serving" in reader.types(f"curl -s http://127.0.0.1:{port}/health")
        reader.types(reader.block("bash scripts/run.sh"), timeout_s=600)
    for server in (first_server, other):
        assert "drained; 0 episodes are cancelled" in server.printed()
    shown = reader.types("python -m rl_agent.cli trajectories list --log-path " + str(reader.home / "exp1"))
    assert shown.count(":0:0") == 12
