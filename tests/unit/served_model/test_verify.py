"""A node serves only what was published, whole; and what nobody served yet can be taken back."""

import os
from pathlib import Path

import pytest

from rl_agent.cli import rollback as rollback_verb
from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import model as model_verb
from rl_agent.engine.model import resolve_model
from rl_agent.errors import ConfigError, StoreError
from rl_agent.served_model import verify
from rl_agent.served_model.digest import first_difference
from rl_agent.served_model.verify import verify_model, verify_served
from rl_agent.served_model.versions import RECORD, is_unserved, mark_served, read_record
from rl_agent.system.files import replace_link
from tests.unit.safetensors_files import write_model
from tests.unit.trainer.llamafactory.trainings import publish_iteration


class SharedFolder:
    """A file system that shows a change after some seconds, on a clock that moves as one sleeps."""

    def __init__(self, change=lambda: None, after_s: float = 3.0):
        self.now, self._change, self._due = 0.0, change, after_s

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self._due:
            self._change()

    def verify(self, plan, weight_version=None, timeout_s=10.0) -> None:
        times = {"timeout_s": timeout_s, "clock": lambda: self.now, "sleep": self.sleep}
        verify_served(plan.paths, weight_version=weight_version, **times)


@pytest.fixture
def published(plan):
    publish_iteration(plan, 1)
    return plan


@pytest.fixture
def plan_file(plan) -> str:
    path = plan.paths.log_path / "plan.json"
    plan.write(path)
    return str(path)


def test_the_record_holds_a_digest_of_all_that_an_engine_reads(published):
    folder = published.paths.version_dir(1)
    expected = {path.name for path in folder.iterdir() if path.is_file()} - {RECORD}
    assert read_record(folder).files.keys() == expected
    assert "model.safetensors" in expected


def test_a_whole_version_passes_at_once(published):
    shared = SharedFolder()
    shared.verify(published, weight_version=1)
    assert shared.now == 0.0


def flip_a_bit(path: Path, *, in_place: bool = False) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    if not in_place:
        path.unlink()  # a new file: the trainer's copy shares the old one
    path.write_bytes(content)


FILES = ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_bit, "differs from what was written"),
        (lambda path: os.truncate(path, 3), r"has 3 of the \d+ bytes"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_a_file_that_differs_is_named(published, name, damage, message):
    path = published.paths.version_dir(1) / name
    damage(path)
    with pytest.raises(StoreError, match=rf"{name}: {message}"):
        verify_served(published.paths)


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Names of the files that were read in full, as they are."""
    names: list[str] = []

    def counting(folder, wanted):
        names.extend(wanted)
        return first_difference(folder, wanted)

    monkeypatch.setattr(verify, "first_difference", counting)
    return names


def test_files_read_once_are_not_read_again_until_they_change(published, read, monkeypatch):
    folder = published.paths.version_dir(1)
    verify_model(folder)
    assert {"model.safetensors", "config.json"} <= set(read)
    read.clear()
    verify_model(published.paths.model_link)
    verify_served(published.paths)
    assert read == []
    os.utime(folder / "config.json", ns=(1, 1))
    verify_model(folder)
    assert read == ["config.json"]
    for name in ("boot_id", "_node"):
        read.clear()
        monkeypatch.setattr(verify, name, lambda: "another")
        verify_model(folder)
        assert "model.safetensors" in read


def test_a_flipped_bit_in_a_file_read_before_is_found_at_its_next_use(published):
    verify_model(published.paths.model_link)
    flip_a_bit(published.paths.version_dir(1) / "model.safetensors", in_place=True)
    for _ in range(2):  # what differs is not remembered
        with pytest.raises(StoreError, match=r"model\.safetensors: differs from what was written; restore"):
            verify_model(published.paths.model_link)


def test_where_nothing_can_be_remembered_everything_is_read_again(published, read, monkeypatch):
    def read_only(path, content, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(verify, "write_whole", read_only)
    for _ in range(2):
        read.clear()
        verify_model(published.paths.version_dir(1))
        assert "model.safetensors" in read


def test_a_file_that_shows_late_is_waited_for(published):
    path = published.paths.version_dir(1) / "model.safetensors"
    hidden = path.rename(path.with_name("hidden"))
    shared = SharedFolder(lambda: hidden.rename(path))
    shared.verify(published)
    assert shared.now == 3.0


def test_a_link_that_shows_late_is_waited_for_when_the_version_is_known(published):
    publish_iteration(published, 2)
    link = published.paths.model_link
    replace_link(link, "checkpoints/version-000001")
    shared = SharedFolder(lambda: replace_link(link, "checkpoints/version-000002"))
    shared.verify(published, weight_version=2)
    assert shared.now == 3.0
    with pytest.raises(StoreError, match=r"model\.pt: leads to weight version 2, not 3; waited 10 s"):
        SharedFolder().verify(published, weight_version=3)


def test_a_version_whose_folder_is_not_visible_yet_is_not_unrecorded(published):
    (published.paths.version_dir(1) / RECORD).unlink()
    with pytest.raises(StoreError, match=r"published\.json: there is no such file"):
        verify_served(published.paths)


def test_a_base_model_and_a_users_model_have_nothing_to_verify(plan, tmp_path):
    verify_served(plan.paths)
    plan.paths.model_link.symlink_to(write_model(tmp_path / "outside"))
    verify_served(plan.paths, weight_version=0)
    publish_iteration(plan, 1)
    rollback_verb.main(["--log-path", str(plan.paths.log_path)])
    assert resolve_model(plan.config).weight_version == 0
    verify_served(plan.paths, weight_version=0)


def test_the_verb_returns_the_model_only_if_it_is_whole(published, plan_file):
    folder = published.paths.version_dir(1)
    whole = VerbResult({"path": str(folder), "weight_version": 1})
    assert model_verb.main(["verify", "--plan", plan_file, "--version", "1"]) == whole
    flip_a_bit(folder / "config.json")
    with pytest.raises(StoreError, match=r"config\.json"):
        model_verb.main(["verify", "--plan", plan_file])
    assert model_verb.main(["--plan", plan_file]) == whole  # naming it is not checking it


def test_a_version_is_unserved_until_an_engine_was_ready_on_it(published, plan_file):
    assert is_unserved(published.paths)
    model_verb.main(["served", "--plan", plan_file])
    assert not is_unserved(published.paths)
    publish_iteration(published, 2)
    assert is_unserved(published.paths)


def roll_back(plan_file: str) -> str | None:
    return rollback_verb.main(["--if-unserved", "--plan", plan_file]).fields.get("model")


def test_only_an_unserved_version_is_taken_back(published, plan_file):
    mark_served(published.paths, 1.0)
    publish_iteration(published, 2)
    assert roll_back(plan_file) == str(published.paths.version_dir(1))
    assert roll_back(plan_file) is None  # version 1 was served
    assert resolve_model(published.config).weight_version == 1


def test_the_first_version_is_taken_back_to_the_base_model(published, plan_file):
    assert roll_back(plan_file) == "the base model"
    assert roll_back(plan_file) is None


def test_a_users_model_is_not_taken_back(plan, plan_file):
    write_model(plan.paths.model_link)
    assert roll_back(plan_file) is None


def test_without_the_condition_a_served_version_is_taken_back_too(published, plan_file):
    mark_served(published.paths, 1.0)
    rollback_verb.main(["--plan", plan_file])
    with pytest.raises(ConfigError, match="nothing was published"):
        rollback_verb.main(["--plan", plan_file])
