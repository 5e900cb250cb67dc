"""The verbs that `run.sh` calls, a file each; a person needs them only to drive phases by hand.

As in `rl_agent.cli`: `SUMMARY`, one line, and `main(argv) -> int`; where a person's words reach the verb, as
with `plan`, also `TAKES_PATHS_OF_A_PERSON`. Begin with `plan`, then `next`.
"""
