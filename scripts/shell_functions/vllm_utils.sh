# The vLLM server of a run: start, check, stop. Sourced; defines functions only.
# PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

export VLLM_USE_TRITON_FLASH_ATTN=${VLLM_USE_TRITON_FLASH_ATTN:-1}
ENGINE_STARTS=0   # numbers the server's logs
ENGINE_LOG=''     # of the last start
IS_GPU_BUSY=0     # the last start never came to the server: someone else holds the GPU's memory

# One start: the server, or the worker that brings it into the pool, as a group with its own log, watched until
# it is ready or dead.
# Usage: start_vllm_once
start_vllm_once() {
  local status=0
  ENGINE_STARTS=$((ENGINE_STARTS + 1))
  ENGINE_LOG=${PLAN[logs]}/vllm-${PLAN[attempt]}-$ENGINE_STARTS.log
  say "starting the engine; its log is $ENGINE_LOG"
  start_group vllm "$PYTHON_BIN" -m rl_agent.cli "${PLAN[engine_verb]}" --plan "$PLAN_FILE" >"$ENGINE_LOG" 2>&1
  ask engine --plan "$PLAN_FILE" ready --pid "${PGID_OF[vllm]}" --log "$ENGINE_LOG" || status=$?
  ((status == 0)) || stop_vllm
  return "$status"
}

# Start the server on the newest model, in a few attempts; only an error in the configuration (78) is not
# tried again. Returns the last attempt's status.
# Usage: start_vllm <iteration>
start_vllm() {
  local attempt status=0 start=$EPOCHREALTIME
  for ((attempt = 1; attempt <= ${PLAN[start_attempts]}; attempt++)); do
    status=0
    wait_for_gpu_memory_clear || status=$?
    IS_GPU_BUSY=$((status != 0))
    ((status != 0)) || start_vllm_once || status=$?
    if ((status == 0)); then
      record_span engine_start "$1" "$start"
      return 0
    fi
    say "the engine did not start (attempt $attempt of ${PLAN[start_attempts]}, status $status)"
    ((status != 78)) || break
    ask flag check --plan "$PLAN_FILE" || return
  done
  return "$status"
}

# Stop the server this run started; an external engine is left alone.
# Usage: stop_vllm
stop_vllm() {
  stop_group vllm "${PLAN[stop_timeout_s]}"
}

# Before training: stop the server, unless it may stay up on what the training leaves it.
# Usage: make_room_for_training
make_room_for_training() {
  ((!PLAN[engine_stays_up])) || return 0
  stop_vllm
  wait_for_gpu_memory_clear
}

# Let a running server take the newest model, where the configuration says so. ANSWER: what it then serves.
# Usage: swap_weights <iteration>
swap_weights() {
  local start=$EPOCHREALTIME
  ask swap --plan "$PLAN_FILE" --iteration "$1" --version "$WEIGHT_VERSION"
  [[ $ANSWER != wanted ]] || record_span weights_swap "$1" "$start"
}

# Make sure that an engine serves the newest model: reuse ours if it does or can take it, else start it. Fails
# if a stranger answers, or nothing can be started.
# Usage: ensure_vllm_running <iteration>
ensure_vllm_running() {
  ensure_pool_running
  ask engine --plan "$PLAN_FILE" check --version "$WEIGHT_VERSION"
  [[ $ANSWER != old-version ]] || swap_weights "$1"
  if ((${PLAN[debug_mode]})); then
    [[ $ANSWER != wanted ]] || return 0
    say "the external engine does not serve what it should ($ANSWER)"
    resolve_model_to_serve
    say "start it on ${ANSWER%%$'\t'*}, then --resume"
    return 75
  fi
  wait_for_pooled_engine
  if [[ $ANSWER != wanted || (${PLAN[starts_engine]} == 1 && -z ${PGID_OF[vllm]:-}) ]]; then
    stop_vllm
    start_newest_model "$1"
  fi
  ((!PLAN[is_master])) || ask model --plan "$PLAN_FILE" served
}

# Start the server on the newest model, once this node sees all of it, as it was published. If no server was
# ever ready on that model and none can be started, the master goes back to the one before.
# Usage: start_newest_model <iteration>
start_newest_model() {
  local status=0 wanted=()
  ((PLAN[is_master])) || wanted=(--version "$WEIGHT_VERSION" --wait-s "${PLAN[visibility_s]}")
  IS_GPU_BUSY=0
  ask model --plan "$PLAN_FILE" verify "${wanted[@]}" || status=$?
  ((status == 0 || PLAN[is_master])) || return "$status"
  ((status != 0)) || start_vllm "$1" || status=$?
  ((status != 0 && status != 78 && PLAN[is_master] && !IS_GPU_BUSY)) || return "$status"
  ask rollback --plan "$PLAN_FILE" --if-unserved
  [[ -n $ANSWER ]] || return "$status"
  say "the new model does not start: going back to $ANSWER"
  ensure_pool_running
  start_vllm "$1"
  WEIGHT_VERSION=-1
}
