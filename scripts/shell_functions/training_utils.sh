# One update: prepare, train on all nodes, publish. Sourced; defines functions only.
# PLAN, PHASE and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

export DEEPSPEED_LOG_LEVEL=${DEEPSPEED_LOG_LEVEL:-WARNING}
FAILED_UPDATES=0     # in a row
LAST_UPDATE_STATUS=0 # the exit status of the run, if it ends well otherwise

# Train on what was collected and publish the result, or leave everything as it was.
# Usage: update_atomic
update_atomic() {
  local -A training # who trains, and where they meet
  step prepare_update training
  step train_on_all_nodes training
  step publish_update
}

# The master writes the dataset and decides who trains on it; the others wait for that.
# Usage: prepare_update <record>      (fields: those of wait_for_phase)
prepare_update() {
  local -n decision=$1
  local -A members prepared
  local status=0
  if ((PLAN[is_master])); then
    ask members flag ranks --plan "$PLAN_FILE"
    ask prepared prepare-update --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" --nodes "${members[nodes]}" ||
      status=$?
    run_verb flag decide --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" --phase "prepared-${PHASE[order]}" \
      --outcome "${prepared[outcome]:-failed}" --ranks "${members[ranks]}"
  fi
  wait_for_phase "$1" "prepared-${PHASE[order]}"
  end_phase_unless_done "${decision[outcome]}" "$status"
  [[ ${PHASE[outcome]} != skipped ]] || ((PLAN[is_master])) || # there prepare-update has said why
    say "iteration ${PHASE[iteration]}: nothing to train on; the model is unchanged"
}

# Usage: train_on_all_nodes <record of prepare_update>
train_on_all_nodes() {
  local -A decision
  local status=0 outcome='done'
  run_llamafactory_training "$1" || { status=$? && outcome=failed; }
  ((status == 75)) || create_phase_flag "train-${PHASE[order]}" "$outcome"
  wait_for_phase decision "train-${PHASE[order]}"
  end_phase_unless_done "${decision[outcome]}" "$status"
}

# LLaMA-Factory as a group with its own log and a deadline; returns its status, 124 at the deadline, 75 as
# soon as another node is lost.
# Usage: run_llamafactory_training <record of prepare_update>
run_llamafactory_training() {
  local -n place=$1
  local status=0 start=$EPOCHREALTIME log=${PLAN[logs]}/training-${PLAN[attempt]}-${PHASE[iteration]}.log
  [[ -n ${place[node_rank]} ]] || return 0 # came too late for this one
  say "update ${PHASE[iteration]}: training, log ${log##*/}"
  start_group training "$PYTHON_BIN" -P -m rl_agent.cli train --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" \
    --nodes "${place[nodes]}" --node-rank "${place[node_rank]}" --master "${place[master]}" >"$log" 2>&1
  run_verb watch --plan "$PLAN_FILE" --pid "${PGID_OF[training]}" --timeout-s "${PLAN[train_timeout_s]}" \
    --iteration "${PHASE[iteration]}" --phase "train-${PHASE[order]}" || status=$?
  if ((status == 0)); then wait_group training || status=$?; fi
  cleanup_deepspeed_processes
  record_span training "$start"
  if ((status == 124)); then
    say "the training reached trainer.timeout_s=${PLAN[train_timeout_s]} and was stopped"
  elif ((status != 0 && status != 75)); then
    say "the training failed (status $status); $log ends:"
    show_end "$log"
  fi
  return "$status"
}

# Usage: publish_update
publish_update() {
  local -A published
  local status=0
  ((PLAN[is_master])) || return 0
  ask published publish --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" || status=$?
  if ((status == 0)); then
    say "update ${PHASE[iteration]}: published ${published[path]##*/}"
  else
    end_phase_unless_done failed "$status"
  fi
}

# Take over what the master decided of a part of this phase. A node that was lost on the way is none of the phase's
# own failures: the master orders it again.
# Usage: end_phase_unless_done <outcome> <status of the step that this node did>
end_phase_unless_done() {
  case $1 in
    'done') ;;
    lost) PHASE[outcome]=again ;;
    failed) PHASE[outcome]=failed PHASE[status]=$(($2 ? $2 : 1)) ;;
    *) PHASE[outcome]=$1 ;;
  esac
}

# A failed update leaves the old model serving. In `both` the loop goes on with it once; a second failure
# in a row, or any in `update`, ends the run. The master decides that, a worker follows its orders.
# Usage: judge_update
judge_update() {
  [[ ${PHASE[outcome]} != again ]] || return 0
  LAST_UPDATE_STATUS=${PHASE[status]}
  FAILED_UPDATES=$((LAST_UPDATE_STATUS ? FAILED_UPDATES + 1 : 0))
  ((LAST_UPDATE_STATUS)) || return 0
  say "the update of iteration ${PHASE[iteration]} failed (status $LAST_UPDATE_STATUS): the previous model stays in service"
  ((PLAN[is_master])) || return 0
  [[ ${PLAN[rl_phase]} == both ]] && ((FAILED_UPDATES < 2)) || return "$LAST_UPDATE_STATUS"
}
