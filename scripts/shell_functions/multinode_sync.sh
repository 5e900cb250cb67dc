# Where ranks meet: each reports what it has finished, the master decides. One node is the case of one rank.
# Sourced; functions only. PLAN and PHASE are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

# Record that this rank has finished a phase, or a part of one.
# Usage: create_phase_flag <phase> <done|skipped|failed>
create_phase_flag() {
  run_verb flag create --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" --phase "$1" --outcome "$2"
}

# Wait until the master has decided a phase, or a part of one. Fields: outcome; and where it is about who trains:
# ranks, nodes (how many those are), node_rank (this node's place among them, empty if it has none), master (where
# they meet). Fails with 75 if the master is lost, with 124 at the deadline, and reports who was waited for.
# Usage: wait_for_phase <record> <phase>
wait_for_phase() {
  ask "$1" flag wait --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" --phase "$2"
}

# An iteration's data is the shards of all ranks, read where they lie: nothing is copied, and it is complete
# once the master has closed the phase.
# Usage: aggregate_trajectories
aggregate_trajectories() {
  local -A decision
  wait_for_phase decision "${PHASE[phase]}"
}
