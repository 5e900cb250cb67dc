"""docs/how-to/launch-with-ssh.md with a real sshd: its machines are this one, at a port of their own."""

import getpass
import json
import os
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader, left_running

PAGE = "docs/how-to/launch-with-ssh.md"
SIBLINGS = 2
SERVER = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
"""
CLIENT = """Host node-b node-c
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user_key
  StrictHostKeyChecking no
  UserKnownHostsFile {folder}/known_hosts
  LogLevel ERROR
"""


@pytest.fixture
def ssh_config(tmp_path):
    """A client's configuration for two hosts, of an sshd that runs as this user."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if server is None:
        pytest.skip("there is no sshd; apt-get install openssh-server brings one")
    folder, port = tmp_path / "ssh", free_port()
    folder.mkdir()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(SERVER.format(folder=folder, port=port))
    (folder / "ssh_config").write_text(CLIENT.format(folder=folder, port=port, user=getpass.getuser()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where its package's service would have made it

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    command = f"exec {server} -D -e -f {folder / 'sshd_config'}"
    with left_running(tmp_path, command, folder / "sshd.log") as running:
        running.wait_until(answers, 30)
        yield folder / "ssh_config"


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_all_three_machines_collect_with_the_words_of_the_first_one(tmp_path, small, vllm_server, ssh_config):
    steps = "'env_config.train_difficulty_max_steps={easy: 1, medium: 1, hard: 1}'"
    words = small.collect_at(vllm_server, steps, f"rollout.group_size={SIBLINGS}")
    instead = {"--rl-phase both --eval-interval 6": words, "ssh -n": f"ssh -F {ssh_config} -n"}
    reader = Reader(PAGE, tmp_path, instead)
    (reader.shared / "rl-agent").symlink_to(reader.checkout)
    (reader.shared / "data").mkdir()
    for split in ("train", "test"):
        (reader.shared / "data" / f"{split}.jsonl").write_text((small.data / f"{split}.jsonl").read_text())
    with reader.leaves_running(reader.block("hosts=(node-a")) as first:
        first.ends_well(600)

    assert (ssh_config.parent / "sshd.log").read_text().count("Accepted publickey") == 2
    paths = RunPaths(reader.shared / "exp1")
    keys = [str(episode.key) for episode in read_iteration(paths, "train", 1, TRAJECTORY)]
    assert len(keys) == len(set(keys)) == 60 * SIBLINGS
    assert len(list(paths.trajectory_dir("train").glob("*.iteration1_rank_[012]*"))) == 3
    config = json.loads((paths.log_path / "runs/latest/plan-1-rank-1.json").read_text())["config"]
    assert config["env_config"]["train_difficulty_max_steps"] == {"easy": 1, "medium": 1, "hard": 1}
