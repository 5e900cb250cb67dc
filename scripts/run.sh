#!/usr/bin/env bash
# The driver of a run: collect trajectories, evaluate, update, in one loop. `--help` shows the flags.
# Bash names the phases and owns the processes; every decision is made in Python.
#
# Usage: bash scripts/run.sh --data-path PATH --log-path PATH --rl-phase rollout|update|both [options] [key=value…]
set -Eeuo pipefail
shopt -s inherit_errexit

RUN_SH_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$RUN_SH_DIR/shell_functions/common_utils.sh"
# shellcheck source=scripts/shell_functions/plan_utils.sh
source "$RUN_SH_DIR/shell_functions/plan_utils.sh"
# shellcheck source=scripts/shell_functions/gpu_utils.sh
source "$RUN_SH_DIR/shell_functions/gpu_utils.sh"
# shellcheck source=scripts/shell_functions/vllm_utils.sh
source "$RUN_SH_DIR/shell_functions/vllm_utils.sh"
# shellcheck source=scripts/shell_functions/pool_utils.sh
source "$RUN_SH_DIR/shell_functions/pool_utils.sh"
# shellcheck source=scripts/shell_functions/rollout_utils.sh
source "$RUN_SH_DIR/shell_functions/rollout_utils.sh"
# shellcheck source=scripts/shell_functions/training_utils.sh
source "$RUN_SH_DIR/shell_functions/training_utils.sh"
# shellcheck source=scripts/shell_functions/stream_utils.sh
source "$RUN_SH_DIR/shell_functions/stream_utils.sh"
# shellcheck source=scripts/shell_functions/multinode_sync.sh
source "$RUN_SH_DIR/shell_functions/multinode_sync.sh"

PLAN_FILE=''
PLANNER_PID=''   # while the plan is being made
ORDER=0          # number of the order that this node carries out
WEIGHT_VERSION=0 # to be served meanwhile; -1: this node has just gone back to the one before
FAILED_UPDATES=0 # in a row
LAST_STATUS=0    # of the last update

# Usage: on_signal <exit-status>
# shellcheck disable=SC2329
on_signal() {
  if ((IS_STOPPING)); then
    IS_HURRIED=1
    return
  fi
  IS_STOPPING=1
  PENDING_EXIT=$1
  ((IS_STARTING)) || exit "$1"
}

# Usage: on_exit <exit-status>
# shellcheck disable=SC2329
on_exit() {
  set +e
  IS_STOPPING=1
  IS_STARTING=0
  [[ -z $PLANNER_PID ]] || kill -TERM "$PLANNER_PID" 2>/dev/null
  if [[ -n ${PLAN[groups]:-} ]]; then
    (($1 == 0)) || say "stopping (status $1); the same command with --resume goes on"
    # It ends what it is doing, and says good-bye to the others; at the end of a run there is no hurry.
    stop_group node "$(($1 ? STOP_GRACE_S : 15))"
    stop_group trainer "$TRAINER_GRACE_S"
    stop_all
    dismiss_guard
    rm -f -- "${PLAN[lock]:-}"
    rm -rf -- "${PLAN[weights_store]:-}"
  fi
  exit "$1"
}

# Wandb records from metrics.jsonl in a process of its own, so that it can never hold up the loop.
# Usage: start_recorder
start_recorder() {
  [[ $WANDB_MODE != disabled ]] && ((PLAN[is_master])) || return 0
  start_group wandb "$PYTHON_BIN" -m rl_agent.cli wandb-sync --plan "$PLAN_FILE" \
    >"${PLAN[logs]}/wandb-${PLAN[attempt]}.log" 2>&1
}

# The curves of all iterations as LOG_PATH/reward.png; a run without numbers has none.
# Usage: draw_curves
draw_curves() {
  [[ -s ${PLAN[metrics]} ]] && ((PLAN[is_master])) || return 0
  ask report --log-path "${PLAN[log_path]}" || say "the curves could not be drawn"
}

# For a phase that collects. WEIGHT_VERSION is below 0 then where another one is served, IS_TRAINING_LOST set
# where the trainer has not got as far.
# Usage: get_engine_ready <phase> <iteration>
get_engine_ready() {
  # An engine that takes turns with the trainer is not there before it has published what it trains.
  ((!PLAN[takes_turns])) || await_version "$1" "$2"
  ((!IS_TRAINING_LOST)) || return 0
  ensure_vllm_running "$2"
  ((WEIGHT_VERSION < 0)) || await_version "$1" "$2"
}

# Usage: run_phase <phase> <iteration>
run_phase() {
  local phase=$1 iteration=$2 start outcome='done'
  say "iteration $iteration: $phase"
  ensure_trainer_running "$iteration"
  if [[ $phase == update ]]; then
    make_room_for_training
  else
    get_engine_ready "$phase" "$iteration"
  fi
  ((WEIGHT_VERSION >= 0 && !IS_TRAINING_LOST)) || return 0 # the master orders it anew
  start=$EPOCHREALTIME
  case $phase in
    rollout) rollout_atomic_train "$iteration" ;;
    evaluate) rollout_atomic_test "$iteration" ;;
    update)
      update_phase "$iteration"
      outcome=$UPDATE_OUTCOME
      ;;
  esac
  record_span "$phase" "$iteration" "$start"
  [[ $outcome != lost ]] || return 0 # a node was lost: the master orders it anew
  create_phase_flag "$iteration" "$phase" "$outcome"
  if [[ $phase == update ]]; then
    wait_for_phase "$iteration" "$phase"
  else
    aggregate_trajectories "$iteration" "$phase"
  fi
}

# The one loop: Python names the next phase, until there is none.
# Usage: run_loop
run_loop() {
  local iteration phase
  while true; do
    ask next --plan "$PLAN_FILE"
    [[ -n $ANSWER ]] || break
    read -r iteration phase ORDER WEIGHT_VERSION <<<"$ANSWER"
    run_phase "$phase" "$iteration"
    if [[ ${PLAN[rl_phase]} == update && $UPDATE_OUTCOME == skipped ]]; then
      say "training alone cannot change that: done"
      break
    fi
  done
}

main() {
  exec {GUARD_FD}>/dev/null {NODE_IN}>/dev/null {NODE_OUT}</dev/null
  trap 'on_exit $?' EXIT
  trap 'on_signal 130' INT
  trap 'on_signal 143' TERM
  trap 'on_signal 129' HUP
  trap : PIPE # a node process that has died is found by its silence
  export RL_AGENT_DRIVER_PID=$$ # who works for this run ends with it
  find_python
  make_plan "$@"
  read_plan
  start_guard
  start_node
  start_recorder
  run_loop
  finish_training
  stop_vllm
  stop_group manager
  stop_group wandb 30
  draw_curves
  ask flag leave --plan "$PLAN_FILE"
  exit "$LAST_STATUS"
}

main "$@"
