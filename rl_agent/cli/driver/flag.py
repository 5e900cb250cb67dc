"""The verb `flag` records what a node has finished, and what the master decides about it."""

import argparse

from rl_agent.cli._options import add_iteration, member_or_alone, plan_parser
from rl_agent.cli._result import VerbResult
from rl_agent.cluster.member.member import Member
from rl_agent.cluster.protocol.records import Decision
from rl_agent.cluster.shared_fs.address import advertised_address, free_port
from rl_agent.errors import HarnessError

SUMMARY = "record that this rank has finished a phase, wait for the master's decision, or make it"
EXAMPLE = """examples:
  rl-agent flag create --plan runs/r1/plan.json --iteration 3 --phase rollout
  rl-agent flag wait --plan runs/r1/plan.json --iteration 3 --phase rollout
"""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("flag", SUMMARY, EXAMPLE)
    parser.add_argument(
        "action", choices=("create", "wait", "ranks", "decide", "check", "leave"), help="what to do"
    )
    add_iteration(parser, required=False)
    parser.add_argument("--phase", help="name of the phase in its order: rollout, train-8, …")
    parser.add_argument(
        "--outcome", choices=("done", "skipped", "failed"), default="done", help="how the phase ended here"
    )
    parser.add_argument("--ranks", help="for decide: the participating ranks, separated by commas")
    return parser


def main(argv: list[str], member: Member | None = None) -> int | VerbResult:
    options = parser().parse_args(argv)
    with member_or_alone(member, options.plan) as member:
        return _act(options, member)


def _act(options: argparse.Namespace, member: Member) -> int | VerbResult:
    cluster = member.plan.config.cluster
    match options.action:
        case "create":
            member.finish(options.iteration, options.phase, options.outcome)
        case "wait":
            decision = member.wait_decision(
                options.iteration, options.phase, timeout_s=cluster.phase_timeout_s
            )
            return decided(decision, member.rank)
        case "check":
            return _status(member)
        case "leave":
            member.end()
        case "ranks":
            return VerbResult(_group(member.participants()))
        case "decide":
            port = cluster.master_port or free_port()
            address = f"{advertised_address(cluster)}:{port}"
            member.decide(options.iteration, options.phase, options.outcome, (options.ranks, address))
    return 0


def decided(decision: Decision, rank: int) -> VerbResult:
    """A decision, with this node's place where it is about who trains."""
    if not decision.words:
        return VerbResult({"outcome": decision.outcome})
    joined, master = decision.words
    ranks = tuple(int(word) for word in joined.split(","))
    place = ranks.index(rank) if rank in ranks else ""
    return VerbResult({"outcome": decision.outcome, **_group(ranks), "node_rank": place, "master": master})


def _group(ranks: tuple[int, ...]) -> dict[str, str | int]:
    return {"ranks": ",".join(str(rank) for rank in ranks), "nodes": len(ranks)}


def _status(member: Member) -> int:
    """Return whether this node is still a member; whoever asks has been told already why it is not."""
    try:
        member.check()
    except HarnessError as error:
        return error.exit_code
    return 0
