"""Serves the model that was served before the present one, or the version that is named."""

import argparse
from pathlib import Path

from rl_agent.cli._options import log_folder, read_plan, verb_parser
from rl_agent.cli._result import VerbResult
from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.served_model.verify import check_served, version_difference

SUMMARY = "switch model.pt back to the previous version, or to --to; return its path as model"
BASE = "base"

EPILOG = """\
examples
  rl-agent rollback --log-path /home/user/exp1
  rl-agent rollback --log-path /home/user/exp1 --to 7
  rl-agent rollback --plan /home/user/exp1/runs/RUN/plan.json

A running engine keeps its model until it is restarted. The next update starts from the model and
the optimizer that rollback restores. Of the versions from which the served one descends,
trainer.keep_versions are kept; others stay until you delete their folders. If a copy of a log path has lost
the link model.pt, --to restores it.
"""


def main(argv: list[str]) -> VerbResult:
    options = _parser().parse_args(argv)
    paths = read_plan(options.plan).paths if options.plan else RunPaths(log_folder(options.log_path))
    if options.to is not None:
        folder = _serve(paths, options.to)
    elif options.if_unserved and not versions.is_unserved(paths):
        return VerbResult()
    else:
        check_served(paths)
        folder = versions.rollback(paths)
    return VerbResult({"model": str(folder) if folder is not None else "the base model"})


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("rollback", SUMMARY, EPILOG)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--plan", type=Path, help="plan.json of a run")
    where.add_argument("--log-path", type=Path, help="log path of the run")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--if-unserved",
        action="store_true",
        help="only if no engine was ever ready on the current version; otherwise return nothing",
    )
    which.add_argument(
        "--to", type=_version, metavar="N|base", help="serve this version, or the base model, from now on"
    )
    return parser


def _version(word: str) -> int | str:
    if word != BASE and not word.isdecimal():
        raise argparse.ArgumentTypeError(f"expected the number of a version or {BASE}, not {word!r}")
    return BASE if word == BASE else int(word)


def _serve(paths: RunPaths, version: int | str) -> Path | None:
    """Serve a version that is as it was published. Raises ConfigError for another one."""
    link = paths.model_link
    if link.exists() and not link.is_symlink():
        raise ConfigError(f"{link}: is not a link to a model; move it away, then repeat this command")
    if link.exists():
        versions.adopt(paths)  # a user's own model stays as version 0
    if isinstance(version, str):
        versions.serve_base(paths)
        return None
    folder = paths.version_dir(version)
    if reason := version_difference(paths, folder):
        raise ConfigError(f"--to {version}: {reason}; the folders in {paths.checkpoints} are the versions")
    versions.switch(paths, folder)
    return folder
