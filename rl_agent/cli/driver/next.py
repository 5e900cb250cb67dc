"""Says what this node has to do next. The master reads it off the run's flags and shards, and orders it."""

import sys

from rl_agent.cli._options import plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.cluster.member.member import Member
from rl_agent.cluster.protocol.flags import finished_phases
from rl_agent.cluster.protocol.schedule import PendingPhases, add_shards, next_work
from rl_agent.config.plan import Plan
from rl_agent.engine.model import resolve_model
from rl_agent.served_model import versions
from rl_agent.served_model.verify import check_served
from rl_agent.trainer.llamafactory.dataset.unseen import has_ended, why_ended

SUMMARY = "return the next phase: iteration, phase, order, weight_version; nothing when all is done"
EXAMPLE = """examples:
  rl-agent next --plan runs/r1/plan.json
"""


def main(argv: list[str], member: Member | None = None) -> VerbResult:
    plan = read_plan(plan_parser("next", SUMMARY, EXAMPLE).parse_args(argv).plan)
    if member is None:
        work = _work(plan)
        return VerbResult({"iteration": work.iteration, "phase": work.phases[0]} if work else {})
    if not member.is_master:
        order = member.next_order()
    elif (work := _work(plan)) is not None:
        member.answer_losses()
        check_served(plan.paths)
        weight_version = resolve_model(plan.config).weight_version
        order = member.give_order(work.iteration, work.phases[0], (str(weight_version),))
    else:
        order = None
    if order is None:
        return VerbResult()
    (version,) = order.words
    phase = {"iteration": str(order.iteration), "phase": order.phase}
    return VerbResult({**phase, "order": order.seq, "weight_version": version})


def _work(plan: Plan) -> PendingPhases | None:
    if has_ended(plan):
        print(why_ended(plan), file=sys.stderr)
        return None
    finished = add_shards(finished_phases(plan.paths.flags, plan.run_id, plan.attempt), plan.paths)
    _add_published(finished, plan)
    return next_work(plan.command, plan.first_iteration, finished, is_streaming=plan.config.is_streaming)


def _add_published(finished: dict[int, set[str]], plan: Plan) -> None:
    """A published model ends its update, also where the run was killed before it wrote the flag."""
    record = versions.served_record(plan.paths)
    if record is not None and record.run_id == plan.run_id:
        finished.setdefault(record.iteration, set()).add("update")
