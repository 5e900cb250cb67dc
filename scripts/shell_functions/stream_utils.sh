# The streaming trainer of a run (trainer=grpo): one process group on each node that trains, which lives as long
# as the loop. Sourced; defines functions and constants only. PLAN, PHASE and the state variables are shared with
# run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

readonly TRAINER_GRACE_S=60 # a trainer that is asked to stop saves a checkpoint first
declare -A TRAINER=(
  [starts]=0   # numbers its logs
  [failures]=0 # how often it ended without a node being lost
  [log]=''     # of the last start
  [phase]=''   # ITERATION/PHASE of the last start; empty: this node has no part in it
  [ranks]=''   # who trains, with commas
)

# Let the trainer run on the nodes that carry out this order. They meet as for an update: the master decides who
# they are and where, or that the trainer that runs goes on.
# Usage: ensure_trainer_running
ensure_trainer_running() {
  local -A training
  ((PLAN[is_streaming])) || return 0
  if ((PLAN[is_master])); then decide_training; fi
  wait_for_phase training "prepared-${PHASE[order]}"
  [[ ${training[outcome]} == 'done' ]] || return 0
  stop_trainer "${training[ranks]}"
  start_trainer training
}

# A trainer is started where none runs, and where nodes have gone or come since: on as many as there are now.
# Usage: decide_training
decide_training() {
  local outcome=skipped
  local -A members
  ask members flag ranks --plan "$PLAN_FILE"
  if [[ -z ${PGID_OF[trainer]:-} || ${members[ranks]} != "${TRAINER[ranks]}" ]]; then outcome='done'; fi
  ensure_pool_running # that is where its weights go
  run_verb flag decide --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" --phase "prepared-${PHASE[order]}" \
    --outcome "$outcome" --ranks "${members[ranks]}"
}

# One that waits for a node that is gone cannot save any more.
# Usage: stop_trainer <ranks of the next one>
stop_trainer() {
  local rank grace_s=$TRAINER_GRACE_S
  for rank in ${TRAINER[ranks]//,/ }; do
    [[ ,$1, == *",$rank,"* ]] || grace_s=$STOP_GRACE_S
  done
  stop_group trainer "$grace_s"
}

# Usage: start_trainer <record of wait_for_phase>
start_trainer() {
  local -n place=$1
  TRAINER[ranks]=${place[ranks]}
  TRAINER[phase]=''
  [[ -n ${place[node_rank]} ]] || return 0 # came too late for this one
  TRAINER[phase]=${PHASE[iteration]}/train-${PHASE[order]}
  TRAINER[starts]=$((TRAINER[starts] + 1))
  TRAINER[log]=${PLAN[logs]}/trainer-${PLAN[attempt]}-${TRAINER[starts]}.log
  say "trainer: starting, log ${TRAINER[log]##*/}"
  start_group trainer "$PYTHON_BIN" -P -m rl_agent.cli stream-train --plan "$PLAN_FILE" --start "${PHASE[order]}" \
    --nodes "${place[nodes]}" --node-rank "${place[node_rank]}" --master "${place[master]}" >"${TRAINER[log]}" 2>&1
}

# Wait until the trainer has published what the phase needs, which sets PHASE[min_weight_version]. Where it ends
# before, on any node, the phase is ordered again: with the next order it is started again, from its checkpoint.
# Usage: await_version
await_version() {
  local status=0
  local -A reached
  ((PLAN[is_streaming])) || return 0
  ask reached await-version --plan "$PLAN_FILE" --phase "${PHASE[phase]}" --iteration "${PHASE[iteration]}" \
    --pid "${PGID_OF[trainer]:-0}" --training "${TRAINER[phase]}" || status=$?
  if ((status == 75)); then
    run_verb flag check --plan "$PLAN_FILE"
    PHASE[outcome]=again
    end_trainer "${reached[end]:-lost}"
    return
  fi
  ((status == 0)) || return "$status"
  PHASE[min_weight_version]=${reached[min_weight_version]}
}

# Returns the status of the trainer that ended where it is not started again: one that fails by itself is, as
# often as trainer.max_restarts allows; that of a lost node always, if the run goes on.
# Usage: end_trainer <failed|lost>
end_trainer() {
  local status=0
  [[ -n ${PGID_OF[trainer]:-} ]] || return 0
  wait_group trainer 1 || status=$?
  say "the trainer ended (status $status); ${TRAINER[log]} ends:"
  show_end "${TRAINER[log]}"
  ((PLAN[is_master])) || return 0
  [[ $1 == lost ]] || TRAINER[failures]=$((TRAINER[failures] + 1))
  is_refusal "$status" || ((TRAINER[failures] > PLAN[trainer_restarts])) || return 0
  return $((status ? status : 70))
}

# After the last iteration the trainer ends by itself, or serves its weights for the last evaluation until it is
# stopped. Its last version and model are published by then: a trainer that fails at its end has done all that was
# asked of it.
# Usage: finish_training
finish_training() {
  local status=0
  ((PLAN[is_streaming])) && [[ -n ${PGID_OF[trainer]:-} ]] || return 0
  if ((PLAN[ends_with_evaluation])); then
    stop_group trainer "$TRAINER_GRACE_S"
    return
  fi
  wait_group trainer "$TRAINER_GRACE_S" || status=$?
  ((status == 0)) ||
    say "the trainer ended with status $status after its last version was published; log ${TRAINER[log]}"
}
