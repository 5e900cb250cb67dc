"""`flag` as run.sh uses it."""

from rl_agent.cli import flag
from rl_agent.cluster.member import Member
from rl_agent.errors import RetryLater
from tests.rollout_setup import make_plan


def test_a_check_repeats_no_line_that_was_said_already(tmp_path, capsys):
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1", model=tmp_path)
    words = ["--plan", "unused", "check"]
    with Member.alone(plan) as member:
        assert flag.main(words, member) == 0
        member.fail(RetryLater("the master has given this node up"))
        assert flag.main(words, member) == 75
    assert capsys.readouterr().err == ""
