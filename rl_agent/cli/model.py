"""Prints which model a run serves."""

from rl_agent.cli._plan_file import plan_parser, read_plan
from rl_agent.engine.model import resolve_model

SUMMARY = "print the model to serve: PATH<TAB>WEIGHT_VERSION"


def main(argv: list[str]) -> int:
    plan = read_plan(plan_parser("model", SUMMARY).parse_args(argv).plan)
    model = resolve_model(plan.config)
    print(f"{model.path}\t{model.weight_version}")
    return 0
