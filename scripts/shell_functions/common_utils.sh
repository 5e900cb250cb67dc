# Process groups, messages, and the way into Python. Sourced; defines functions and constants only.
# PLAN, PHASE and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly PROJECT_ROOT
readonly SHELL_FUNCTIONS=$PROJECT_ROOT/scripts/shell_functions
readonly STOP_GRACE_S=3 # a stopping run gives each of its groups this long before KILL
readonly NODE_GRACE_S=$((STOP_GRACE_S + 3)) # killed on a busy machine, a node could not tell the others why it ends
readonly POLL_S=0.1
readonly SILENT_S=2 # nobody waits longer for something without being told for what
readonly -A GROUP_WORDS=(
  [node]='the rollout and its environments' [vllm]='the engine' [trainer]='the trainer, which saves a checkpoint,'
  [training]='the training' [manager]="the pool's manager" [wandb]='wandb, which uploads the rest,'
  [page]='the page'
)
NOW_S=0          # what look_at_clock has seen
declare -A PLAN=()        # what the verb `plan` says about the plan
declare -A PGID_OF=()     # name of a running group -> process id of its leader
declare -A TOKEN_OF=()    # name of a running group -> the mark that all its processes inherit
declare -a GROUP_ORDER=() # names in the order of their start
GUARD_PID=''
IS_STARTING=0  # inside start_group: a signal waits until the child is known
IS_STOPPING=0  # the run is ending; another signal hurries it
IS_HURRIED=0   # nobody gets a grace any more
PENDING_EXIT=0 # exit status of the signal that came while IS_STARTING

# Usage: say <words…>
say() {
  printf '%(%H:%M:%S)T run: %s\n' -1 "$*" >&2
}

# Seconds since this machine started, in NOW_S: bash's own count follows a clock that somebody sets.
# Usage: look_at_clock
look_at_clock() {
  read -r NOW_S _ </proc/uptime
  NOW_S=${NOW_S%%.*}
}

# The Python that has the package: RL_AGENT_PYTHON, else the project's .venv, else python3.
# Usage: python_of_project
python_of_project() {
  local python=${RL_AGENT_PYTHON:-$PROJECT_ROOT/.venv/bin/python}
  [[ -n ${RL_AGENT_PYTHON:-} || -x $python ]] || python=python3
  [[ $python != */* || $python == /* ]] || python=$PWD/$python
  printf '%s\n' "$python"
}

# Let Python find the package in a checkout; an installed one lies around scripts/, and Python knows where.
# Usage: export_python_path
export_python_path() {
  [[ -f $PROJECT_ROOT/__init__.py ]] || export PYTHONPATH=$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}
}

# Become the project's Python, for scripts that are one command.
# Usage: exec_python <python arguments…>
exec_python() {
  local python
  python=$(python_of_project)
  export_python_path
  exec "$python" "$@"
}

# Start the process that answers the verbs of this run, so that Python starts once and not in every phase;
# returns once this node is a member of the run.
# Usage: start_node
start_node() {
  local -A nothing
  start_group node "$PYTHON_BIN" -P -m rl_agent.cli node --plan "$PLAN_FILE"
  take_reply nothing
}

# Ask the node process to run a verb: fills a record, an associative array of the caller, with the fields that the
# verb returns, and returns its exit status. In a shell that only sources these functions there is no such process:
# then the verb runs by itself.
# Usage: ask <record> <verb> [arguments…]
ask() {
  if [[ -z ${NODE_IN:-} ]]; then
    ask_alone "$@"
    return
  fi
  printf '%s\0' "$(($# - 1))" "${@:2}" >&"$NODE_IN" || true
  take_reply "$1"
}

# Run a verb in a process of its own, and read the fields that it prints.
# Usage: ask_alone <record> <verb> [arguments…]
ask_alone() {
  local -n found_fields=$1
  local status=0 printed line
  found_fields=()
  printed=$(export_python_path && "$(python_of_project)" -P -m rl_agent.cli "${@:2}") || status=$?
  while IFS='' read -r line; do
    [[ ! $line =~ ^[a-z_]+= ]] || found_fields[${line%%=*}]=${line#*=}
  done <<<"$printed"
  return "$status"
}

# Ask for a verb of which only the exit status counts.
# Usage: run_verb <verb> [arguments…]
run_verb() {
  local -A nothing
  ask nothing "$@"
}

# `read` and not a subshell waits for the reply, so that a signal ends the wait at once. If the node process
# has ended instead, its exit status is returned; it has said why, unless it was killed.
# Usage: take_reply <record>
take_reply() {
  local -n record_of_caller=$1
  local status=0 field
  record_of_caller=()
  IFS='' read -r -d '' status <&"$NODE_OUT" || true
  while IFS='' read -r -d '' field <&"$NODE_OUT"; do
    [[ -n $field ]] || return "$status"
    record_of_caller[${field%%=*}]=${field#*=}
  done
  status=0
  wait "${PGID_OF[node]}" || status=$?
  ((status <= 128 || IS_STOPPING)) || say "the node process of this run was killed by signal $((status - 128))"
  return $((status ? status : 70))
}

# Start a command as the leader of its own process group, recorded on disk before it runs. It keeps the
# caller's stdout and stderr, gets no stdin, and inherits none of this shell's pipes. The group `node` talks
# to this shell: its stdin and stdout become NODE_IN and NODE_OUT.
# Usage: start_group <name> <command…>
start_group() {
  local name=$1 token=$SRANDOM$SRANDOM record=${PLAN[groups]}/$1
  local -a command=(env "RL_AGENT_GROUP=$token" setsid "$BASH" "$SHELL_FUNCTIONS/recorded_exec.sh" "$record")
  command+=("${@:2}")
  rm -f -- "$record"
  IS_STARTING=1
  if [[ $name == node ]]; then
    coproc NODE { exec "${command[@]}" {GUARD_FD}>&-; }
    exec {NODE_OUT}<&"${NODE[0]}" {NODE_IN}>&"${NODE[1]}"
  else
    "${command[@]}" </dev/null {GUARD_FD}>&- {NODE_IN}>&- {NODE_OUT}<&- &
  fi
  PGID_OF[$name]=$!
  TOKEN_OF[$name]=$token
  GROUP_ORDER+=("$name")
  while [[ ! -e $record ]] && kill -0 "${PGID_OF[$name]}" 2>/dev/null; do sleep 0.005 || true; done
  IS_STARTING=0
  ((PENDING_EXIT == 0)) || exit "$PENDING_EXIT"
}

# Process ids of the living processes that carry a mark. A zombie shows no environment and so does not
# count: in a container nobody may be there to reap it.
# Usage: marked_processes <token>
marked_processes() {
  local file files
  mapfile -d '' -t files < <(grep -lszxF -Z "RL_AGENT_GROUP=$1" /proc/[0-9]*/environ)
  for file in "${files[@]}"; do
    file=${file#/proc/}
    printf '%s\n' "${file%/environ}"
  done
}

# Return 0 while processes that carry a mark live, and also where Ctrl+C ended the look before it could tell.
# Usage: is_marked_alive <token>
is_marked_alive() {
  local found
  found=$(marked_processes "$1") || return 0
  [[ -n $found ]]
}

# Signal processes that carry a mark: the leader if it lives, for it knows how to end its children, or all.
# Usage: signal_marked <signal> <token> [leader-pid]
signal_marked() {
  local pids leader=${3:-}
  mapfile -t pids < <(marked_processes "$2")
  if [[ -n $leader && " ${pids[*]} " == *" $leader "* ]]; then pids=("$leader"); fi
  ((${#pids[@]} == 0)) || kill "-$1" -- "${pids[@]}" 2>/dev/null || true
}

# TERM to the leader, to the others once it is gone, KILL for what is left after the grace. Returns 1 if
# something survives even that. With a name it says every few seconds what it waits for.
# Usage: end_marked <token> <leader-pid> <grace-seconds> [name]
end_marked() {
  local token=$1 leader=$2 name=${4:-} began deadline line_at
  look_at_clock
  began=$NOW_S deadline=$((NOW_S + $3)) line_at=$((NOW_S + SILENT_S))
  signal_marked TERM "$token" "$leader"
  while is_marked_alive "$token"; do
    if [[ -n $leader && ! -e /proc/$leader/exe ]]; then
      signal_marked TERM "$token"
      leader=''
    fi
    look_at_clock
    if [[ -n $name ]] && ((NOW_S >= line_at)); then
      say "waiting for ${GROUP_WORDS[$name]:-$name} to end, $((NOW_S - began)) s so far (killed after $3 s)" 2>&"$REPORT_FD"
      line_at=$((NOW_S + SILENT_S))
    fi
    if ((NOW_S >= deadline || IS_HURRIED)); then
      signal_marked KILL "$token"
      ((NOW_S < deadline + 3)) || return 1
    fi
    sleep "$POLL_S"
  done
}

# Ask a process group to stop, then insist. Idempotent; touches nothing else.
# Usage: stop_group <name> [grace-seconds]
stop_group() {
  local name=$1 grace_s=${2:-$STOP_GRACE_S} status=0
  local leader=${PGID_OF[$name]:-}
  [[ -n $leader ]] || return 0

  exec {REPORT_FD}>&2
  # What bash would say of a child that had to be killed is no news.
  end_marked "${TOKEN_OF[$name]}" "$leader" "$grace_s" "$name" 2>/dev/null || status=$?
  exec {REPORT_FD}>&-
  if ((status == 0)); then
    wait "$leader" 2>/dev/null || true
    rm -f -- "${PLAN[groups]}/$name"
  else
    say "$name: processes $(marked_processes "${TOKEN_OF[$name]}" | tr '\n' ' ')do not end; the next start will report them"
  fi
  unset "PGID_OF[$name]" "TOKEN_OF[$name]"
}

# Stop everything this run started, last started first.
# Usage: stop_all
stop_all() {
  local index
  for ((index = ${#GROUP_ORDER[@]} - 1; index >= 0; index--)); do
    stop_group "${GROUP_ORDER[index]}"
  done
  GROUP_ORDER=()
}

# Wait until a group's leader ends, end what it left behind, and return its exit status; 124 if it still
# ran at the deadline and was stopped.
# Usage: wait_group <name> [timeout-seconds]
wait_group() {
  local name=$1 timeout_s=${2:-} status=0
  if [[ -n $timeout_s ]]; then
    wait_leader "${PGID_OF[$name]}" "$timeout_s" || status=$?
  fi
  if ((status == 0)); then
    wait "${PGID_OF[$name]}" || status=$?
  fi
  stop_group "$name"
  return "$status"
}

# Return 0 once the leader is gone or a zombie, 124 at the deadline.
# Usage: wait_leader <pid> <timeout-seconds>
wait_leader() {
  local deadline line
  look_at_clock
  deadline=$((NOW_S + $2))
  while { read -r line <"/proc/$1/stat"; } 2>/dev/null && [[ ! $line =~ \)\ [ZX]\  ]]; do
    look_at_clock
    ((NOW_S < deadline)) || return 124
    sleep 0.2
  done
}

# Start the process that ends this run's groups if this shell is killed: it reads a pipe that only this
# shell holds open, and acts when the pipe closes without a farewell.
# Usage: start_guard
start_guard() {
  exec {GUARD_FD}> >(exec setsid "$BASH" "$SHELL_FUNCTIONS/guard.sh" "${PLAN[groups]}" "${PLAN[weights_store]}")
  GUARD_PID=$!
}

# Usage: dismiss_guard
dismiss_guard() {
  [[ -n $GUARD_PID ]] || return 0
  { printf 'done\n' >&"$GUARD_FD"; } 2>/dev/null || true
  exec {GUARD_FD}>&-
  wait "$GUARD_PID" 2>/dev/null || true
}

# Whether a status says that trying again does not help: this machine (69) or the configuration (78) is not right.
# Usage: is_refusal <status>
is_refusal() {
  (($1 == 69 || $1 == 78))
}

# What others wrote, without the control characters that a terminal obeys.
# Usage: … | harmless
harmless() {
  LC_ALL=C tr -d '\000-\010\013-\037\177'
}

# The end of the log of a process that failed. A launcher's last words are about the process that failed under
# it: the error before them comes first.
# Usage: show_end <log>
show_end() {
  { head -n -15 -- "$1" | grep -E '(Error|Exception): [^ ]' | grep -v 'root cause' | tail -n 1 | harmless; } >&2 || true
  tail -n 15 -- "$1" | harmless >&2
}

# Append one span to the run's timeline.
# Usage: record_span <name> <start-epoch>
record_span() {
  printf '{"name": "%s", "iteration": %s, "start": %s, "end": %s}\n' "$1" "${PHASE[iteration]}" "$2" "$EPOCHREALTIME" \
    >>"${PLAN[timeline]}"
}

# The model that the run serves now. Fields: path, weight_version; without a record it prints the path. A script
# that sources this alone sets PLAN_FILE, as to LOG_PATH/runs/latest/plan.json.
# Usage: resolve_model_to_serve [record]
resolve_model_to_serve() {
  local -A found_model=()
  if (($#)); then
    ask "$1" model --plan "$PLAN_FILE"
  else
    ask found_model model --plan "$PLAN_FILE" || return
    printf '%s\n' "${found_model[path]}"
  fi
}

# This and find_last_checkpoint are for scripts of users, which source this folder: the loop calls neither.
# Usage: detect_num_gpus [record]      (field: gpus; without a record it prints the number)
detect_num_gpus() {
  local -A found_gpus=()
  if (($#)); then
    ask "$1" gpu count
  else
    ask found_gpus gpu count || return
    printf '%s\n' "${found_gpus[gpus]}"
  fi
}

# The newest checkpoint-K of a training, or nothing.
# Usage: find_last_checkpoint <training-folder>
find_last_checkpoint() {
  local found
  found=$(compgen -G "$1/checkpoint-*" | sort -V | tail -n 1) || true
  printf '%s\n' "$found"
}
