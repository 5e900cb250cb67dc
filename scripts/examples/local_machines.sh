#!/usr/bin/env bash
# Processes of this machine as if each were a rented one: for `pool scale --provider command` where there is no cloud,
# and as a model of what a provider's three commands have to do.
#
# Usage: bash scripts/examples/local_machines.sh start NAME COMMAND…   once a name; its output goes to FOLDER/NAME.log
#        bash scripts/examples/local_machines.sh stop NAME             TERM; KILL from the next call on after 30 s
#        bash scripts/examples/local_machines.sh list                  NAME lines of those that run
#   FOLDER is $RL_AGENT_LOCAL_MACHINES, by default ./local-machines
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

FOLDER=${RL_AGENT_LOCAL_MACHINES:-local-machines}
readonly FOLDER GRACE_S=30

# Print when a process was started, in clock ticks since boot: with its number that identifies it for good.
# Usage: started_at <pid>
started_at() {
  local text
  local -a fields
  { read -r text <"/proc/$1/stat"; } 2>/dev/null || return 1
  read -ra fields <<<"${text##*) }"
  [[ ${fields[0]} != [ZX] ]] && printf '%s\n' "${fields[19]}"
}

# Print the process group of a machine that runs; fails if it does not.
# Usage: group_of <name>
group_of() {
  local pid since now
  [[ -f $FOLDER/$1.pid ]] && read -r pid since <"$FOLDER/$1.pid" || return 1
  now=$(started_at "$pid") && [[ $now == "$since" ]] && printf '%s\n' "$pid"
}

# Usage: start <name> <command…>
start() {
  if group_of "$1" >/dev/null; then return 0; fi
  setsid bash "${BASH_SOURCE[0]}" become "$@" </dev/null >>"$FOLDER/$1.log" 2>&1 &
}

# Write this process down, then become the command: a kill in between leaves none that is unknown.
# Usage: become <name> <command…>
become() {
  printf '%s %s\n' "$$" "$(started_at "$$")" >"$FOLDER/.$1.tmp"
  mv "$FOLDER/.$1.tmp" "$FOLDER/$1.pid"
  exec "${@:2}"
}

# Usage: stop <name>
stop() {
  local group sign=TERM mark=$FOLDER/$1.stopped
  group=$(group_of "$1") || return 0
  if [[ ! -e $mark ]]; then touch "$mark"; fi
  if (($(date +%s) - $(stat -c %Y "$mark") > GRACE_S)); then sign=KILL; fi
  kill -s "$sign" -- "-$group" 2>/dev/null || true
}

list() {
  local file name
  for file in "$FOLDER"/*.pid; do
    name=${file##*/}
    if group_of "${name%.pid}" >/dev/null; then printf '%s\n' "${name%.pid}"; fi
  done
}

main() {
  mkdir -p "$FOLDER"
  case ${1:-} in
    start | become) "$@" ;;
    stop) stop "$2" ;;
    list) list ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
  esac
}

main "$@"
