"""Becomes another program that ends with its parent: `python -m rl_agent.env.tools.launch PARENT_PID …`.

A server of tools ends when its input ends, if it is well made. This one is killed by the kernel too, as soon
as the collector dies in any way.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent_pid: str, *command: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent_pid):  # it died before the line above
        sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command of the configuration
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
