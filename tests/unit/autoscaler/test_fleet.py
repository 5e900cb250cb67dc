"""The file of a fleet: whole, private to one reconciler, and refused where it is something else."""

from dataclasses import replace

import pytest

from rl_agent.autoscaler.fleet import (
    Fleet,
    FleetMachine,
    Setback,
    Stage,
    failed_starts,
    new_fleet,
    read_fleet,
    write_fleet,
)
from rl_agent.errors import StoreError
from rl_agent.pool.demand.records import EngineKind

FLEET = Fleet(
    "rl-1",
    8,
    {"rl-1-7": FleetMachine("rl-1-7", "spot", 5.0, Stage.DRAINING, drain_until=9.0, why="because")},
    {"spot": Setback(2, 50.0)},
    (EngineKind("spot", 1.5, 0, 4, 60.0),),
    7.0,
)


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "fleet.json"
    assert read_fleet(path) is None
    write_fleet(path, FLEET)
    assert read_fleet(path) == FLEET


def test_a_name_has_a_number_only_if_it_is_of_this_fleet():
    assert Fleet("rl-1").number_of("rl-1-12") == 12
    others = ["rl-1-0", "rl-1-012", "rl-1", "rl-12-1", "rl-1-1-1", "rl-1-1\n", "RL-1-1", "rl-1-1234567890"]
    assert {Fleet("rl-1").number_of(other) for other in others} == {None}


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"name": 3}', "newer"])
def test_a_file_that_is_no_state_is_refused_with_a_way_out(tmp_path, content):
    path = tmp_path / "fleet.json"
    write_fleet(path, FLEET)
    newer = path.read_text().replace('"name"', '"colour": "red", "name"', 1)
    path.write_text(newer if content == "newer" else content)
    with pytest.raises(StoreError, match=r"--state .*: is not a state of `pool scale`.*--adopt"):
        read_fleet(path)


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    with pytest.raises(StoreError, match="cannot be read"):
        read_fleet(tmp_path)
    with pytest.raises(StoreError, match="cannot be written"):
        write_fleet(tmp_path, FLEET)


def test_a_link_to_the_file_stays_one(tmp_path):
    path, link = tmp_path / "fleet.json", tmp_path / "link.json"
    link.symlink_to(path)
    write_fleet(link, FLEET)
    assert link.is_symlink() and read_fleet(path) == FLEET


def test_two_fleets_of_one_name_take_each_others_machines_for_strangers():
    fleet, other = new_fleet("lab"), new_fleet("lab")
    assert fleet.number_of(f"{fleet.name}-3") == 3
    assert fleet.number_of(f"{other.name}-3") is None and fleet.number_of("lab-3") is None


def test_kinds_whose_starts_failed_are_reported_if_the_manager_names_them():
    stages = [Stage.JOINED, Stage.JOINED, Stage.ASKED, Stage.DRAINING, Stage.ENDING]
    machines = {str(n): FleetMachine(str(n), "spot", 0.0, stage) for n, stage in enumerate(stages)}
    fleet = replace(FLEET, machines=machines, setbacks={"spot": Setback(3, 130.0), "gone": Setback(1, 9.0)})
    spot = {"count": 3, "retry_in_s": 30.0, "joined": 2, "starting": 1}
    assert failed_starts(fleet, 100.0) == {"spot": spot}
