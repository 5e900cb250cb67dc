# Ranks meet through flags under the log path; one node is the case of one rank. Sourced; functions only.
# PLAN is shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2154

# Record that this rank has finished a phase.
# Usage: create_phase_flag <iteration> <phase> [done|skipped|failed]
create_phase_flag() {
  ask flag create --folder "${PLAN[flags]}" --rank "${PLAN[rank]}" --iteration "$1" --phase "$2" \
    --outcome "${3:-done}"
}

# Wait until every rank has finished a phase; 124 names those that have not.
# Usage: wait_for_phase <iteration> <phase>
wait_for_phase() {
  ((${PLAN[num_nodes]} > 1)) || return 0 # the only rank is the one that asks
  ask flag wait --folder "${PLAN[flags]}" --ranks "${PLAN[num_nodes]}" --iteration "$1" --phase "$2"
}

# An iteration's data is the shards of all ranks, read where they lie: it is complete, and nothing is
# copied, once every rank has finished the phase.
# Usage: aggregate_trajectories <iteration> <phase>
aggregate_trajectories() {
  wait_for_phase "$1" "$2"
}
