"""A class of the caller's is found in its folder, and nothing else there stands in for a library."""

import sys

import pytest

from rl_agent.config.overrides.user_class import load_class
from rl_agent.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_beside_the_module_stands_in_for_no_library(folder):
    sys.modules.pop("colorsys", None)
    (folder / "colorsys.py").write_text("raise SystemExit('the folder came first')\n")
    (folder / "helping.py").write_text("WORD = 'helped'\n")
    (folder / "own_game.py").write_text("import colorsys, helping\nclass Game:\n    word = helping.WORD\n")
    game = load_class("k", "own_game:Game", [folder])
    assert game.word == "helped"
    assert sys.modules["colorsys"].rgb_to_hls
    assert sys.path[-1] == str(folder)


def test_the_module_itself_is_looked_for_in_its_folder_first(folder):
    sys.modules.pop("sched", None)
    (folder / "sched.py").write_text("class Game:\n    pass\n")
    assert load_class("k", "sched:Game", [folder]).__module__ == "sched"


@pytest.mark.parametrize("init", ["", None], ids=["package", "namespace"])
def test_a_module_of_a_package_is_found(folder, init):
    (folder / "own_games").mkdir()
    if init is not None:
        (folder / "own_games" / "__init__.py").write_text(init)
    (folder / "own_games" / "maze.py").write_text("class Maze:\n    pass\n")
    assert load_class("k", "own_games.maze:Maze", [folder]).__module__ == "own_games.maze"


def test_a_module_that_raises_is_named_each_time(folder):
    (folder / "broken_game.py").write_text("raise RuntimeError('no board')\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot import broken_game: RuntimeError: no board"):
            load_class("k", "broken_game:Game", [folder])
