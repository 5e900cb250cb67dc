# From the command line to the plan of a run. Sourced; defines functions only.
# PLAN, PHASE and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

# Usage: find_python
find_python() {
  PYTHON_BIN=$(python_of_project)
  export_python_path
  local missing='import sys, importlib.util as u; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))'
  "$PYTHON_BIN" -P -c "$missing" rl_agent hydra pydantic psutil 2>/dev/null && return
  say "$PYTHON_BIN cannot import rl_agent or its dependencies: run scripts/quickstart.sh, or set RL_AGENT_PYTHON"
  exit 78
}

# Check the arguments and write the plan; a help text or a dry run ends here. What the planner says becomes variables
# for every process of the run, and facts for this script.
# Usage: make_plan <run.sh's arguments…>
make_plan() {
  local word plan
  for word in "$@"; do
    case $word in
      --help | -h | --dry-run) exec "$PYTHON_BIN" -P -m rl_agent.cli plan "$@" ;;
    esac
  done
  exec {plan}< <(exec "$PYTHON_BIN" -P -m rl_agent.cli plan "$@")
  PLANNER_PID=$! # a worker's waits for its master; `read` lets a signal end that
  while IFS='' read -r -d '' word <&"$plan"; do
    if [[ $word == [A-Z]* ]]; then export "${word?}"; else PLAN[${word%%=*}]=${word#*=}; fi
  done
  wait "$PLANNER_PID"
  PLANNER_PID=''
  PLAN_FILE=${PLAN[plan_file]:-}
  [[ -n $PLAN_FILE ]] || exit 0 # the run has done all its iterations; the planner has said so
  export DISABLE_VERSION_CHECK=${DISABLE_VERSION_CHECK:-1}
  say "logs: ${PLAN[logs]}"
  cd -- "$RUN_DIR" || return # what a library drops into its working folder belongs to the run
}
