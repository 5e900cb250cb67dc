# Beginning and end of a run: signals, what is stopped at the end, the recorder and the report. Sourced; defines
# functions only. PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

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
    local again='the same command with --resume goes on' # only rank 0 resumes; --join refuses the flag
    ((PLAN[is_master])) || again='the same command takes part again; if rank 0 has ended, start that one with --resume'
    (($1 == 0)) || say "stopping (status $1); $again"
    printf '%s\n' "$1" >"${PLAN[groups]}.exit-status"
    # It ends what it is doing, and takes leave of the others; at the end of a run there is no hurry.
    stop_group node "$(($1 ? NODE_GRACE_S : 15))"
    stop_group trainer "$TRAINER_GRACE_S"
    stop_all
    dismiss_guard
    rm -f -- "${PLAN[lock]:-}"
    rm -rf -- "${PLAN[weights_store]:-}"
  fi
  exit "$1"
}

# Let a signal end the run with the status that the shell gives it, and every end stop what the run started.
# Usage: set_traps
set_traps() {
  trap 'on_exit $?' EXIT
  trap 'on_signal 130' INT
  trap 'on_signal 143' TERM
  trap 'on_signal 129' HUP
  trap : PIPE # a node process that has died is found by its silence
}

# What a browser shows of the run, in a process of its own that nobody waits for: without it the run goes on. Keys
# of others are not in its environment.
# Usage: start_page
start_page() {
  local name
  local -a without=()
  [[ ${PLAN[page]} != off ]] && ((PLAN[is_master])) || return 0
  for name in ${PLAN[page_without]}; do without+=(-u "$name"); done
  start_group page env "${without[@]}" "$PYTHON_BIN" -P -m rl_agent.cli page --plan "$PLAN_FILE" >&2 2>"${PLAN[logs]}/page-${PLAN[attempt]}.log"
}

# Wandb records from metrics.jsonl in a process of its own, so that it can never hold up the loop.
# Usage: start_recorder
start_recorder() {
  [[ $WANDB_MODE != disabled ]] && ((PLAN[is_master])) || return 0
  start_group wandb "$PYTHON_BIN" -P -m rl_agent.cli wandb-sync --plan "$PLAN_FILE" \
    >"${PLAN[logs]}/wandb-${PLAN[attempt]}.log" 2>&1
}

# A run that wandb has not all of reports how to upload it.
# Usage: stop_recorder
stop_recorder() {
  local log=${PLAN[logs]}/wandb-${PLAN[attempt]}.log
  stop_group wandb 40
  [[ ! -f $log ]] || grep -h 'has not all of this run' -- "$log" >&2 || true
}

# What the iteration has reached so far, once its phase has ended.
# Usage: show_phase
show_phase() {
  [[ -s ${PLAN[metrics]} ]] && ((PLAN[is_master])) || return 0
  run_verb report --log-path "${PLAN[log_path]}" --iteration "${PHASE[iteration]}" --phase "${PHASE[phase]}"
}

# The table of all iterations, the curves as LOG_PATH/reward.png, and what to look at next; a run without numbers
# has none.
# Usage: show_run
show_run() {
  [[ -s ${PLAN[metrics]} ]] && ((PLAN[is_master])) || return 0
  run_verb report --log-path "${PLAN[log_path]}" || say "the report could not be made"
}
