# The streaming trainer of a run (trainer=grpo): one process group that lives as long as the loop. Sourced;
# defines functions and constants only. PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

readonly TRAINER_GRACE_S=60 # a trainer that is told to stop saves a checkpoint first
TRAINER_STARTS=0            # numbers the trainer's logs
TRAINER_LOG=''              # of the last start
MIN_WEIGHT_VERSION=0        # what engines must serve to be asked in this phase; 0: anything

# Usage: start_trainer
start_trainer() {
  ((PLAN[is_streaming] && PLAN[is_master])) || return 0
  ensure_pool_running # that is where its weights go
  TRAINER_STARTS=$((TRAINER_STARTS + 1))
  TRAINER_LOG=${PLAN[logs]}/trainer-${PLAN[attempt]}-$TRAINER_STARTS.log
  say "starting the trainer; its log is $TRAINER_LOG"
  start_group trainer "$PYTHON_BIN" -m rl_agent.cli stream-train --plan "$PLAN_FILE" >"$TRAINER_LOG" 2>&1
}

# Wait until the trainer has published what a phase needs; sets MIN_WEIGHT_VERSION. One that dies is started
# again, from its checkpoint, as often as trainer.max_restarts says.
# Usage: await_version <phase> <iteration>
await_version() {
  local status
  ((PLAN[is_streaming])) || return 0
  while true; do
    status=0
    ask await-version --plan "$PLAN_FILE" --phase "$1" --iteration "$2" --pid "${PGID_OF[trainer]}" || status=$?
    ((status == 75)) || break
    ask flag check --plan "$PLAN_FILE" || return
    restart_trainer
  done
  ((status != 0)) || MIN_WEIGHT_VERSION=$ANSWER
  return "$status"
}

# Usage: restart_trainer      returns the status of the trainer that ended where it is not started again
restart_trainer() {
  local status=0
  wait_group trainer || status=$?
  say "the trainer ended (status $status); $TRAINER_LOG ends:"
  tail -n 15 -- "$TRAINER_LOG" >&2
  ((status != 78 && TRAINER_STARTS <= PLAN[trainer_restarts])) || return $((status ? status : 70))
  start_trainer
}

# After the last iteration the trainer ends by itself.
# Usage: finish_training
finish_training() {
  ((PLAN[is_streaming])) && [[ -n ${PGID_OF[trainer]:-} ]] || return 0
  wait_group trainer "$TRAINER_GRACE_S"
}
