"""A file's owner is the process that it names, for as long as that process lives."""

import os
import subprocess
import sys

import pytest
from filelock import Timeout

from rl_agent.errors import RetryLater, StoreError
from rl_agent.system.owner import (
    is_locked,
    is_owner_running,
    owner_lock,
    read_owner,
    sole_owner,
    write_owner,
)
from rl_agent.system.processes import ProcessId

IN_A_CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


def test_a_file_has_an_owner_while_that_process_lives(tmp_path, sleeper):
    path = tmp_path / "owner"
    assert read_owner(path) is None and not is_owner_running(path)
    owner = ProcessId.of(sleeper.pid)
    write_owner(path, owner)
    assert read_owner(path) == owner and is_owner_running(path)
    sleeper.kill()
    sleeper.wait()
    assert read_owner(path) == owner and not is_owner_running(path)


@pytest.mark.parametrize(
    "content", ["", "{", "7", '{"pid": 1}', '{"host": "a", "pid": "x", "start_ticks": 1}']
)
def test_a_file_without_a_whole_record_has_no_owner(tmp_path, content):
    (tmp_path / "owner").write_text(content)
    assert read_owner(tmp_path / "owner") is None and not is_owner_running(tmp_path / "owner")


def test_a_lock_names_its_holder_is_given_once_and_is_free_afterwards(tmp_path):
    path, owner = tmp_path / "lock", ProcessId.of(os.getpid())
    path.write_text("a longer record of an earlier holder, which must not be left behind" * 9)
    with owner_lock(path, owner):
        assert read_owner(path) == owner and is_locked(path)
        with pytest.raises(Timeout):
            owner_lock(path, owner).acquire()
    assert not is_locked(path)
    with pytest.raises(FileNotFoundError):
        is_locked(tmp_path / "none")


@pytest.mark.skipif(
    subprocess.run([*IN_A_CONTAINER, "true"]).returncode != 0, reason="no namespaces for this user"
)
def test_a_process_id_says_nothing_in_a_container_of_the_same_host(tmp_path, sleeper):
    path = tmp_path / "owner"
    write_owner(path, ProcessId.of(sleeper.pid))
    judge = (
        "import sys, pathlib; from rl_agent.system.owner import read_owner;"
        "print(read_owner(pathlib.Path(sys.argv[1])).is_here)"
    )
    here = [sys.executable, "-c", judge, path]
    assert subprocess.check_output(here, text=True) == "True\n"
    assert subprocess.check_output([*IN_A_CONTAINER, *here], text=True) == "False\n"


def test_a_file_has_one_owner_also_by_a_link_and_is_free_after_it(tmp_path):
    path, link = tmp_path / "new folder" / "journal", tmp_path / "link"
    link.symlink_to(path)
    with sole_owner(path, "journal=J", "end it"):
        for sleeper in (path, link):
            in_use = pytest.raises(RetryLater, match=r"^journal=J is in use by process \d+ on .*: end it$")
            with in_use, sole_owner(sleeper, "journal=J", "end it"):
                pass
    with sole_owner(link, "journal=J", "end it"):
        pass


def test_a_file_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(StoreError, match=r"^journal=J cannot be locked \(.*\): File exists$")
    with refused, sole_owner(tmp_path / "file" / "journal", "journal=J", "end it"):
        pass
