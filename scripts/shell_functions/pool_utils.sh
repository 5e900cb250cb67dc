# The pool of a run (pool=elastic): its manager on the master, and this node's engine in it. Sourced; defines
# functions and constants only. PLAN, PHASE and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

MANAGER_STARTS=0 # numbers the manager's logs

# Make sure that the manager runs, and that the pool wants the newest model. Engines that others started stay
# through a restart of it: they come back by themselves, and nothing that was asked for is lost.
# Usage: ensure_pool_running
ensure_pool_running() {
  local status=0
  ((PLAN[is_pooled] && PLAN[is_master])) || return 0
  if [[ -n ${PGID_OF[manager]:-} ]]; then
    run_verb pool want --plan "$PLAN_FILE" || status=$?
    ((status == 75)) || return "$status"
    say "the pool's manager died: restarting it"
    stop_group manager
  fi
  start_manager
  run_verb pool want --plan "$PLAN_FILE"
}

# Usage: start_manager
start_manager() {
  local log
  MANAGER_STARTS=$((MANAGER_STARTS + 1))
  log=${PLAN[logs]}/manager-${PLAN[attempt]}-$MANAGER_STARTS.log
  say "pool manager: starting, log ${log##*/}"
  start_group manager "$PYTHON_BIN" -P -m rl_agent.cli manager --plan "$PLAN_FILE" >"$log" 2>&1
  run_verb pool ready --plan "$PLAN_FILE" --pid "${PGID_OF[manager]}" --log "$log"
}

# At the end of a run nobody shall look for its manager any more, so the file that states its address goes with it:
# `pool scale` gives the machines back then. An attempt that --resume continues keeps it.
# Usage: stop_manager
stop_manager() {
  stop_group manager
  ((!PLAN[is_pooled] || !PLAN[is_master])) || rm -f -- "$RUN_DIR/pool.url"
}

# Wait until an engine is ready in the pool: this node's, whose worker takes up a new model, a dead engine or a
# lost manager by itself as long as it lives; or, where this node starts none, the first of those that join.
# Sets the field `answer` to `wanted` then, to `lost` where this node has to start one; fails only where nothing
# can be started here.
# Usage: wait_for_pooled_engine <record of the verb `engine check`>
wait_for_pooled_engine() {
  local -n seen=$1
  local status=0 pid=${PGID_OF[vllm]:-}
  local -a log=()
  ((PLAN[is_pooled])) && [[ ${seen[answer]} != wanted ]] || return 0
  if ((!PLAN[starts_engine])); then
    say "waiting for an engine to join the pool"
    pid=$$
  fi
  [[ -n $pid ]] || return 0
  [[ -z ${ENGINE[log]} ]] || log=(--log "${ENGINE[log]}") # an engine of others has its log elsewhere
  run_verb engine --plan "$PLAN_FILE" ready --pid "$pid" "${log[@]}" || status=$?
  if ((status == 0)); then seen[answer]=wanted; else seen[answer]=lost; fi
  if [[ -n ${ENGINE[launched_at]} ]]; then
    record_span engine_start "${ENGINE[launched_at]}"
    ENGINE[launched_at]=''
  fi
  ((PLAN[starts_engine])) || return "$status"
}
