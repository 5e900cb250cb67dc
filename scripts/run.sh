#!/usr/bin/env bash
# The driver of a run: collect trajectories, evaluate, update, in one loop. `--help` shows the flags.
# Bash names the phases and owns the processes; every decision is made in Python.
#
# Usage: bash scripts/run.sh --data-path PATH --log-path PATH --rl-phase rollout|update|both [options] [key=value…]
# shellcheck disable=SC2004
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

RUN_SH_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$RUN_SH_DIR/shell_functions/common_utils.sh"
# shellcheck source=scripts/shell_functions/plan_utils.sh
source "$RUN_SH_DIR/shell_functions/plan_utils.sh"
# shellcheck source=scripts/shell_functions/run_utils.sh
source "$RUN_SH_DIR/shell_functions/run_utils.sh"
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
PLANNER_PID='' # while the plan is being made

# The phase that this node carries out. From the verb `next`: iteration, phase, order (its number), weight_version
# (to be served meanwhile). From the steps: min_weight_version (what engines of a pool must serve at least), outcome
# (empty while it goes on, then skipped, failed, or again: the master orders it anew), status (of what failed here).
declare -A PHASE=()

# Python names the next phase, until there is none.
# Usage: run_loop
run_loop() {
  while true; do
    ask PHASE next --plan "$PLAN_FILE"
    [[ -n ${PHASE[phase]:-} ]] || return 0
    PHASE+=([min_weight_version]=0 [outcome]='' [status]=0)
    step ensure_trainer_running
    case ${PHASE[phase]} in
      rollout) collect_phase rollout_atomic_train ;;
      evaluate) collect_phase rollout_atomic_test ;;
      update) update_phase ;;
    esac
    step show_phase
    if [[ ${PLAN[rl_phase]} == update && ${PHASE[outcome]} == skipped ]]; then
      say "training alone cannot change that: collect more trajectories, or lower trainer.reward_threshold"
      return 78
    fi
  done
}

# Episodes of this node's part of the tasks, with an engine that serves what the order names.
# Usage: collect_phase <rollout_atomic_train|rollout_atomic_test>
collect_phase() {
  local start
  if ((PLAN[takes_turns])); then # the engine gets the devices when the trainer has published
    step launch_vllm_ahead
    step await_version
  fi
  step ensure_vllm_running
  step await_version
  start=$EPOCHREALTIME
  step "$1"
  step record_span "${PHASE[phase]}" "$start"
  step create_phase_flag "${PHASE[phase]}" 'done'
  step aggregate_trajectories
}

# New weights from what was collected, or none; a streaming trainer makes them along with the rollouts.
# Usage: update_phase
update_phase() {
  local start
  local -A decision
  step make_room_for_training
  start=$EPOCHREALTIME
  if ((PLAN[is_streaming])); then step await_version; else step update_atomic; fi
  record_span update "$start"
  judge_update
  [[ ${PHASE[outcome]} != again ]] || return 0
  create_phase_flag update "${PHASE[outcome]:-done}"
  wait_for_phase decision update
}

# Go on with the phase, unless a step before this one has ended it.
# Usage: step <function> [arguments…]
step() {
  [[ -z ${PHASE[outcome]} ]] || return 0
  "$@"
}

main() {
  exec {GUARD_FD}>/dev/null {NODE_IN}>/dev/null {NODE_OUT}</dev/null
  set_traps
  export RL_AGENT_DRIVER_PID=$$ # who works for this run ends with it
  find_python
  make_plan "$@"
  start_guard
  start_page
  start_node
  start_recorder
  run_loop
  finish_training
  stop_vllm
  stop_manager
  stop_recorder
  show_run
  run_verb flag leave --plan "$PLAN_FILE"
  exit "$LAST_UPDATE_STATUS"
}

main "$@"
