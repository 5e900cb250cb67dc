"""The verbs that `run.sh` calls, a file each; a person needs them only to drive phases by hand.

As in `rl_agent.cli`: `SUMMARY`, one line, and `main(argv) -> int`. Begin with `plan`, then `next`.
"""
