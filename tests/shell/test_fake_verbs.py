"""The stand-ins of the verbs take the command lines that the real ones take, and no others."""

import pytest

from rl_agent.errors import EXIT_USAGE
from tests.shell.fake_verbs import FAKES, fake


@pytest.mark.parametrize("verb", FAKES)
def test_a_stand_in_refuses_a_flag_that_the_real_verb_does_not_have(verb, tmp_path, capsys):
    plan = ["--plan", str(tmp_path / "plan.json")]

    assert fake([verb, *plan, "--no-such-flag"]).status == EXIT_USAGE
    assert "unknown argument '--no-such-flag'" in capsys.readouterr().err


def test_a_stand_in_refuses_a_value_that_the_real_verb_would_not_take(tmp_path, capsys):
    plan = ["--plan", str(tmp_path / "plan.json")]

    assert fake(["join-pool", *plan, "--log", ""]).status == EXIT_USAGE
    assert "--log: is empty" in capsys.readouterr().err
