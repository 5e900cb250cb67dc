# One update: prepare, train, publish. Sourced; defines functions only.
# PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

export DEEPSPEED_LOG_LEVEL=${DEEPSPEED_LOG_LEVEL:-WARNING}
UPDATE_OUTCOME='' # done | skipped (nothing to train on) | failed

# LLaMA-Factory as a group with its own log and a deadline; returns its status, 124 at the deadline.
# Usage: run_llamafactory_training <iteration>
run_llamafactory_training() {
  local iteration=$1 status=0 log=${PLAN[logs]}/training-${PLAN[attempt]}-$1.log
  say "training; its log is $log"
  start_group training "$PYTHON_BIN" -m rl_agent.cli train --plan "$PLAN_FILE" --iteration "$iteration" \
    >"$log" 2>&1
  wait_group training "${PLAN[train_timeout_s]}" || status=$?
  cleanup_deepspeed_processes
  if ((status == 124)); then
    say "the training reached trainer.timeout_s=${PLAN[train_timeout_s]} and was stopped"
  elif ((status != 0)); then
    say "the training failed (status $status); $log ends:"
    tail -n 15 -- "$log" >&2
  fi
  return "$status"
}

# Train on what was collected and publish the result, or leave everything as it was. Returns the status of
# the step that failed; sets UPDATE_OUTCOME.
# Usage: update_atomic <iteration>
update_atomic() {
  local iteration=$1
  UPDATE_OUTCOME=failed
  ask prepare-update --plan "$PLAN_FILE" --iteration "$iteration" || return
  if [[ -z $ANSWER ]]; then
    say "iteration $iteration: nothing to train on; the model stays as it is"
    UPDATE_OUTCOME=skipped
    return 0
  fi
  run_llamafactory_training "$iteration" || return
  ask publish --plan "$PLAN_FILE" --iteration "$iteration" || return
  say "published ${ANSWER/$'\t'/ }"
  HAS_NEW_MODEL=1
  UPDATE_OUTCOME='done'
}
