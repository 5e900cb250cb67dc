# One update: prepare, train on all nodes, publish. Sourced; defines functions only.
# PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

export DEEPSPEED_LOG_LEVEL=${DEEPSPEED_LOG_LEVEL:-WARNING}
UPDATE_OUTCOME='' # done | skipped (nothing to train on) | failed | lost (a node was lost on the way)

# Usage: node_rank_in <ranks, with commas>     prints this node's place among them; fails if it has none
node_rank_in() {
  local ranks place
  IFS=, read -ra ranks <<<"$1"
  for place in "${!ranks[@]}"; do
    ((ranks[place] != ${PLAN[rank]})) || { printf '%s\n' "$place" && return 0; }
  done
  return 1
}

# Usage: count_ranks <ranks, with commas>
count_ranks() {
  local ranks
  IFS=, read -ra ranks <<<"$1"
  printf '%s\n' "${#ranks[@]}"
}

# LLaMA-Factory as a group with its own log and a deadline; returns its status, 124 at the deadline, 75 as
# soon as another node is lost.
# Usage: run_llamafactory_training <iteration> <ranks> <master-address>
run_llamafactory_training() {
  local iteration=$1 status=0 start=$EPOCHREALTIME node_rank log=${PLAN[logs]}/training-${PLAN[attempt]}-$1.log
  node_rank=$(node_rank_in "$2") || return 0 # came too late for this one
  say "training; its log is $log"
  start_group training "$PYTHON_BIN" -m rl_agent.cli train --plan "$PLAN_FILE" --iteration "$iteration" \
    --nodes "$(count_ranks "$2")" --node-rank "$node_rank" --master "$3" >"$log" 2>&1
  ask watch --plan "$PLAN_FILE" --pid "${PGID_OF[training]}" --timeout-s "${PLAN[train_timeout_s]}" \
    --iteration "$iteration" --phase "train-$ORDER" || status=$?
  if ((status == 0)); then wait_group training || status=$?; fi
  cleanup_deepspeed_processes
  record_span training "$iteration" "$start"
  if ((status == 124)); then
    say "the training reached trainer.timeout_s=${PLAN[train_timeout_s]} and was stopped"
  elif ((status != 0 && status != 75)); then
    say "the training failed (status $status); $log ends:"
    show_end "$log"
  fi
  return "$status"
}

# Train on what was collected and publish the result, or leave everything as it was. Returns the status of
# the step that failed here; sets UPDATE_OUTCOME, which is the same on all nodes.
# Usage: update_atomic <iteration>
update_atomic() {
  local iteration=$1 status=0 trained='done' ranks address
  UPDATE_OUTCOME=failed
  prepare_update "$iteration" || return
  read -r UPDATE_OUTCOME ranks address <<<"$ANSWER"
  [[ $UPDATE_OUTCOME != skipped ]] || say "iteration $iteration: nothing to train on; the model stays as it is"
  [[ $UPDATE_OUTCOME == 'done' ]] || return 0

  run_llamafactory_training "$iteration" "$ranks" "$address" || { status=$? && trained=failed; }
  ((status == 75)) || create_phase_flag "$iteration" "train-$ORDER" "$trained"
  wait_for_phase "$iteration" "train-$ORDER" || return
  UPDATE_OUTCOME=${ANSWER%% *}
  [[ $UPDATE_OUTCOME != failed ]] || return $((status ? status : 1))
  [[ $UPDATE_OUTCOME == 'done' ]] && ((PLAN[is_master])) || return 0

  UPDATE_OUTCOME=failed
  ask publish --plan "$PLAN_FILE" --iteration "$iteration" || return
  say "published ${ANSWER/$'\t'/ }"
  UPDATE_OUTCOME='done'
}

# The master prepares and says who trains; the others wait for that. ANSWER: outcome, ranks, address.
# Usage: prepare_update <iteration>
prepare_update() {
  local status=0 outcome='done' ranks
  if ((PLAN[is_master])); then
    ask flag ranks --plan "$PLAN_FILE"
    ranks=$ANSWER
    ask prepare-update --plan "$PLAN_FILE" --iteration "$1" --nodes "$(count_ranks "$ranks")" || status=$?
    if ((status != 0)); then outcome=failed; elif [[ -z $ANSWER ]]; then outcome=skipped; fi
    ask flag decide --plan "$PLAN_FILE" --iteration "$1" --phase "prepared-$ORDER" --outcome "$outcome" \
      --ranks "$ranks"
  fi
  wait_for_phase "$1" "prepared-$ORDER"
  return "$status"
}

# A failed update leaves the old model serving. In `both` the loop goes on with it once; a second failure
# in a row, or any in `update`, ends the run. The master decides that, a worker follows its orders.
# Usage: update_phase <iteration>
update_phase() {
  LAST_STATUS=0
  if ((PLAN[is_streaming])); then
    await_version update "$1"
    if ((IS_TRAINING_LOST)); then UPDATE_OUTCOME=lost; else UPDATE_OUTCOME='done'; fi
    return
  fi
  update_atomic "$1" || LAST_STATUS=$?
  if ((LAST_STATUS == 0)); then
    FAILED_UPDATES=0
    return 0
  fi
  FAILED_UPDATES=$((FAILED_UPDATES + 1))
  say "the update of iteration $1 failed (status $LAST_STATUS): the model that was served goes on serving"
  ((PLAN[is_master])) || return 0
  [[ ${PLAN[rl_phase]} == both ]] && ((FAILED_UPDATES < 2)) || return "$LAST_STATUS"
}
