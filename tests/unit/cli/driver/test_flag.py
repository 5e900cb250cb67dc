"""`flag` as run.sh uses it."""

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import flag
from rl_agent.cluster.member.member import Member
from rl_agent.cluster.protocol.records import Decision
from rl_agent.errors import RetryLater
from tests.support.rollout_setup import make_plan


def test_a_check_repeats_no_line_that_was_said_already(tmp_path, capsys):
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1", model=tmp_path)
    words = ["--plan", "unused", "check"]
    with Member.alone(plan) as member:
        assert flag.main(words, member) == 0
        member.fail(RetryLater("the master has given this node up"))
        assert flag.main(words, member) == 75
    assert capsys.readouterr().err == ""


def test_a_decision_about_the_training_nodes_names_the_place_of_this_one(tmp_path):
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1", model=tmp_path)
    about = ["--plan", "unused", "--iteration", "1", "--phase", "prepared-1"]
    with Member.alone(plan) as member:
        member.give_order(1, "update", ("0",))
        group = flag.main(["--plan", "unused", "ranks"], member)
        assert group == VerbResult({"ranks": "0", "nodes": 1})
        flag.main([*about, "decide", "--ranks", "0"], member)
        decided = dict(flag.main([*about, "wait"], member).fields)
    assert decided.pop("master").rpartition(":")[2].isdigit()
    assert decided == {"outcome": "done", "ranks": "0", "nodes": 1, "node_rank": 0}


def test_a_node_that_came_too_late_for_a_training_has_no_place_in_it():
    decision = Decision(outcome="done", words=("0,2", "10.0.0.1:29500"))
    assert flag.decided(decision, rank=2).fields["node_rank"] == 1
    assert flag.decided(decision, rank=1).fields["node_rank"] == ""
