"""The verb `doctor` reports from the shared folder alone who lives, who waits for whom, and what to do."""

from rl_agent.cli._options import add_log_path, log_folder, verb_parser
from rl_agent.cluster.member.look import look_twice
from rl_agent.cluster.protocol.diagnosis import diagnose
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.monitor.report import failure_lines, reward_rows
from rl_agent.paths import RunPaths
from rl_agent.system.terminal import one_line

SUMMARY = "show which nodes of a run are alive, which one waits for which, and what to do"
EXAMPLE = """examples:
  rl-agent doctor --log-path /shared/exp1
"""


def main(argv: list[str]) -> int:
    """Prints the diagnosis; returns 1 where there is something to do."""
    parser = verb_parser("doctor", SUMMARY, EXAMPLE)
    add_log_path(parser)
    options = parser.parse_args(argv)
    log_path = log_folder(options.log_path)
    look = look_twice(SharedFolder(log_path))
    seen, advice = diagnose(look)
    try:
        failures = failure_lines(reward_rows(RunPaths(log_path)))
    except OSError as error:  # the rest of the diagnosis counts more
        failures = [f"{error.filename}: {error.strerror}"]
    print("\n".join(map(one_line, [*seen, *failures])))
    well = "nothing: the run is done" if look.view.ended else "nothing: the run goes on"
    print("\n".join(["", "what to do", *(f"  - {one_line(line)}" for line in advice or [well])]))
    return 1 if advice else 0
