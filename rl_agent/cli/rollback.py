"""Serves the model that was served before the present one."""

import argparse
from pathlib import Path

from rl_agent.cli._plan_file import read_plan
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.update.versions import is_unserved, rollback

SUMMARY = "switch model.pt back to the version before; print its path"

EPILOG = """\
examples
  python -m rl_agent.cli rollback --log-path /home/user/exp1
  python -m rl_agent.cli rollback --plan /home/user/exp1/runs/RUN/plan.json

A running engine keeps its model until it is restarted. The next update goes on from the model, and with the
optimizer, that this brings back. Versions are kept as far as trainer.keep_versions says.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rl_agent.cli rollback",
        description=SUMMARY,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--plan", type=Path, help="plan.json of a run")
    where.add_argument("--log-path", type=Path, help="folder of the experiment")
    parser.add_argument(
        "--if-unserved",
        action="store_true",
        help="only if no engine was ever ready on the present version; print an empty line otherwise",
    )
    options = parser.parse_args(argv)
    paths = read_plan(options.plan).paths if options.plan else RunPaths(options.log_path.resolve())
    if not paths.log_path.is_dir():
        raise ConfigError(f"--log-path {paths.log_path}: is not a folder")
    if options.if_unserved and not is_unserved(paths):
        print()
        return 0
    folder = rollback(paths)
    print(folder if folder is not None else "the base model")
    return 0
