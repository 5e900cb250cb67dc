# Where ranks meet: each says what it has finished, the master decides. One node is the case of one rank.
# Sourced; functions only. PLAN is shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

# Record that this rank has finished a phase.
# Usage: create_phase_flag <iteration> <phase> [done|skipped|failed]
create_phase_flag() {
  ask flag create --plan "$PLAN_FILE" --iteration "$1" --phase "$2" --outcome "${3:-done}"
}

# Wait until the master has decided a phase: its outcome, and what else it has to say, are in ANSWER. Fails
# with 75 if the master is lost, with 124 at the deadline, and says who was waited for.
# Usage: wait_for_phase <iteration> <phase>
wait_for_phase() {
  ask flag wait --plan "$PLAN_FILE" --iteration "$1" --phase "$2"
}

# An iteration's data is the shards of all ranks, read where they lie: nothing is copied, and it is complete
# once the master has closed the phase.
# Usage: aggregate_trajectories <iteration> <phase>
aggregate_trajectories() {
  wait_for_phase "$1" "$2"
}
