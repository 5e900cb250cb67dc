"""One file per verb that bash or a person calls; `rl-agent VERB`.

A verb is a module with `SUMMARY` (one line) and `main(argv: list[str]) -> int | VerbResult`. It imports what
it needs inside this package's own files only, so that `plan` and the help stay fast.
May import: everything. Begin with `__main__` and `driver.next`.
"""

import rl_agent.system.interrupts  # noqa: F401 - first of all
