# The vLLM server of a run: start, check, stop. Sourced; defines functions only.
# PLAN, PHASE and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

export VLLM_USE_TRITON_FLASH_ATTN=${VLLM_USE_TRITON_FLASH_ATTN:-1}
readonly STOP_TIMEOUT_S=10 # TERM, and KILL after this; a worker has the half of it (worker.run_worker)
declare -A ENGINE=(
  [starts]=0      # numbers the server's logs
  [log]=''        # of the last start
  [launched_at]='' # when it was started ahead of its turn, until it is ready
  [is_gpu_busy]=0 # the last start never came to the server: another process uses the GPU's memory
)

# Start the server, or the worker that brings it into the pool, as a group with its own log.
# Usage: launch_vllm
launch_vllm() {
  ENGINE[starts]=$((ENGINE[starts] + 1))
  ENGINE[log]=${PLAN[logs]}/vllm-${PLAN[attempt]}-${ENGINE[starts]}.log
  say "engine: starting, log ${ENGINE[log]##*/}"
  start_group vllm "$PYTHON_BIN" -P -m rl_agent.cli "${PLAN[engine_verb]}" --plan "$PLAN_FILE" >"${ENGINE[log]}" 2>&1
}

# Launch an engine that has its devices in turns with the trainer beside that: it waits with its imports done.
# Usage: launch_vllm_ahead
launch_vllm_ahead() {
  [[ -z ${PGID_OF[vllm]:-} ]] || return 0
  ENGINE[launched_at]=$EPOCHREALTIME
  launch_vllm
}

# One start, watched until the engine is ready or dead.
# Usage: start_vllm_once
start_vllm_once() {
  local status=0
  launch_vllm
  run_verb engine --plan "$PLAN_FILE" ready --pid "${PGID_OF[vllm]}" --log "${ENGINE[log]}" || status=$?
  ((status == 0)) || stop_vllm
  return "$status"
}

# Start the server on the newest model, in a few attempts; a refusal is not
# tried again. Returns the last attempt's status.
# Usage: start_vllm
start_vllm() {
  local attempt status=0 start=$EPOCHREALTIME
  for ((attempt = 1; attempt <= ${PLAN[start_attempts]}; attempt++)); do
    status=0
    wait_for_gpu_memory_clear || status=$?
    ENGINE[is_gpu_busy]=$((status != 0))
    ((status != 0)) || start_vllm_once || status=$?
    if ((status == 0)); then
      record_span engine_start "$start"
      return 0
    fi
    say "the engine did not start (attempt $attempt of ${PLAN[start_attempts]}, status $status)"
    ! is_refusal "$status" || break
    run_verb flag check --plan "$PLAN_FILE" || return
  done
  return "$status"
}

# Stop the server this run started; an external engine is left alone.
# Usage: stop_vllm
stop_vllm() {
  stop_group vllm "$STOP_TIMEOUT_S"
}

# Before training: stop the server, unless it may stay up on what the training leaves it.
# Usage: make_room_for_training
make_room_for_training() {
  ((!PLAN[engine_stays_up])) || return 0
  stop_vllm
  wait_for_gpu_memory_clear
}

# Let a running server take the newest model, where the configuration says so. Field: answer, what it then serves.
# Usage: swap_weights <record>
swap_weights() {
  local -n swapped=$1
  local start=$EPOCHREALTIME
  ask "$1" swap --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" --version "${PHASE[weight_version]}"
  [[ ${swapped[answer]} != wanted ]] || record_span weights_swap "$start"
}

# Make sure that an engine serves the newest model: reuse ours if it does or can take it, else start it. Fails
# if a stranger answers, or nothing can be started.
# Usage: ensure_vllm_running
ensure_vllm_running() {
  local -A engine
  ensure_pool_running
  ask engine engine --plan "$PLAN_FILE" check --version "${PHASE[weight_version]}"
  [[ ${engine[answer]} != old-version ]] || swap_weights engine
  if ((PLAN[debug_mode])); then
    check_external_engine "${engine[answer]}"
    return
  fi
  wait_for_pooled_engine engine
  if [[ ${engine[answer]} != wanted || (${PLAN[starts_engine]} == 1 && -z ${PGID_OF[vllm]:-}) ]]; then
    stop_vllm
    start_newest_model
  fi
  ((!PLAN[is_master])) || run_verb model --plan "$PLAN_FILE" served
}

# An engine that a user started is the user's to start again.
# Usage: check_external_engine <what it serves>
check_external_engine() {
  local -A model
  [[ $1 != wanted ]] || return 0
  resolve_model_to_serve model
  say "the external engine does not serve the right model ($1): start it on ${model[path]}, then --resume"
  return 75
}

# Start the server on the newest model, once this node sees all of it, as it was published. If no server was
# ever ready on that model and none can be started, the master goes back to the one before, and orders the phase
# again.
# Usage: start_newest_model
start_newest_model() {
  local status=0 wanted=()
  local -A before
  ((PLAN[is_master])) || wanted=(--version "${PHASE[weight_version]}" --wait-s "${PLAN[visibility_s]}")
  ENGINE[is_gpu_busy]=0
  run_verb model --plan "$PLAN_FILE" verify "${wanted[@]}" || status=$?
  ((status == 0 || PLAN[is_master])) || return "$status"
  ((status != 0)) || start_vllm || status=$?
  ((status != 0 && PLAN[is_master] && !ENGINE[is_gpu_busy])) && ! is_refusal "$status" || return "$status"
  ask before rollback --plan "$PLAN_FILE" --if-unserved
  [[ -n ${before[model]:-} ]] || return "$status"
  say "the new model does not start: going back to ${before[model]}"
  ensure_pool_running
  start_vllm
  PHASE[outcome]=again
}
