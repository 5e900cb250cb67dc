"""Images that came over the wire, as files."""

from pathlib import Path

import pytest

from rl_agent.env.remote.spool import Spool
from rl_agent.errors import EnvironmentFailure


def test_an_answers_images_take_the_place_of_the_instances_earlier_ones():
    spool = Spool(10)
    (first,) = spool.keep(1, (b"123",))
    second = spool.keep(1, (b"45", b"6"))
    assert [Path(path).read_bytes() for path in second] == [b"45", b"6"]
    assert first not in second or Path(first).read_bytes() != b"123"
    spool.drop(1)
    assert not any(Path(path).exists() for path in second)
    spool.close()


def test_a_full_spool_says_so_and_has_room_again():
    spool = Spool(10)
    spool.keep(1, (b"x" * 8,))
    with pytest.raises(EnvironmentFailure, match="at most 10 may"):
        spool.keep(2, (b"x" * 3,))
    spool.drop(1)
    (path,) = spool.keep(2, (b"x" * 10,))
    folder = Path(path).parent
    spool.close()
    assert not folder.exists()


def test_an_answer_without_images_leaves_no_folder():
    spool = Spool(10)
    assert spool.keep(1, ()) == ()
    spool.close()
