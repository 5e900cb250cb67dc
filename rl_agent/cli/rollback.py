"""Serves the model that was served before the present one."""

from pathlib import Path

from rl_agent.cli._options import log_folder, read_plan, verb_parser
from rl_agent.cli._result import VerbResult
from rl_agent.paths import RunPaths
from rl_agent.update.model.versions import is_unserved, rollback

SUMMARY = "switch model.pt back to the version before; return its path as model"

EPILOG = """\
examples
  python -m rl_agent.cli rollback --log-path /home/user/exp1
  python -m rl_agent.cli rollback --plan /home/user/exp1/runs/RUN/plan.json

A running engine keeps its model until it is restarted. The next update goes on from the model, and with the
optimizer, that this brings back. Versions are kept as far as trainer.keep_versions says.
"""


def main(argv: list[str]) -> VerbResult:
    parser = verb_parser("rollback", SUMMARY, EPILOG)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--plan", type=Path, help="plan.json of a run")
    where.add_argument("--log-path", type=Path, help="log path of the run")
    parser.add_argument(
        "--if-unserved",
        action="store_true",
        help="only if no engine was ever ready on the present version; return nothing otherwise",
    )
    options = parser.parse_args(argv)
    paths = read_plan(options.plan).paths if options.plan else RunPaths(log_folder(options.log_path))
    if options.if_unserved and not is_unserved(paths):
        return VerbResult()
    folder = rollback(paths)
    return VerbResult({"model": str(folder) if folder is not None else "the base model"})
