"""A folder that shows what others wrote late, in the same way for the same seed."""

from rl_agent.cluster.member import member
from rl_agent.cluster.shared_fs.folder import MemoryFolder, SharedFolder
from tests.support.cluster.lagging_folder import LaggingFolder, install


def late(server, lag_s=60.0, seed=3):
    now = [0.0]
    return LaggingFolder(server, lag_s=lag_s, seed=seed, clock=lambda: now[0]), now


def test_an_old_view_is_repeated_for_a_while_but_not_beyond_the_lag():
    server = MemoryFolder()
    folder, now = late(server)
    assert folder.read("a") is None and folder.names("d") == []
    server.write_whole("a", {"x": 1})
    server.write_whole("d/e", {})
    assert folder.read("a") is None and folder.names("d") == []
    now[0] = 60.0
    assert folder.read("a") == {"x": 1} and folder.names("d") == ["e"]


def test_later_writes_may_show_before_earlier_ones():
    orders = set()
    for seed in range(20):
        server = MemoryFolder()
        folder, now = late(server, seed=seed)
        assert folder.read("first") is folder.read("second") is None
        server.write_whole("first", {})
        server.write_whole("second", {})
        for second in range(61):
            now[0] = float(second)
            seen = folder.read("first") is not None, folder.read("second") is not None
            if any(seen):
                orders.add(seen)
                break
    assert (False, True) in orders and (True, False) in orders


def test_own_writes_and_claims_show_at_once():
    server = MemoryFolder()
    folder, _ = late(server)
    other, _ = late(server, seed=4)
    assert folder.read("a") is None
    folder.write_whole("a", {"x": 1})
    assert folder.read("a") == {"x": 1}
    assert other.read("c") is None
    assert folder.create_exclusive("c", {"by": 1}) and not other.create_exclusive("c", {"by": 2})
    assert folder.read("c") == {"by": 1}


def test_the_same_seed_is_late_in_the_same_way():
    def run(seed):
        server, seen = MemoryFolder(), []
        folder, now = late(server, lag_s=10.0, seed=seed)
        for second in range(100):
            now[0] = float(second)
            server.write_whole("a", {"second": second})
            seen.append(folder.read("a")["second"])
        return seen

    assert run(1) == run(1) != run(2)


def test_the_variable_makes_the_folder_of_a_node_lag(monkeypatch, tmp_path):
    monkeypatch.setattr(member, "SharedFolder", SharedFolder)
    install({})
    assert member.SharedFolder is SharedFolder
    install({"RL_AGENT_FOLDER_LAG": "5:1"})
    assert isinstance(member.SharedFolder(tmp_path), LaggingFolder)
