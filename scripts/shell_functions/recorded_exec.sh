#!/usr/bin/env bash
# Record this process, which leads a new process group, and become the command: at no instant does the
# command run unrecorded.
# Usage: recorded_exec.sh <record-file> <command…>      record: PID START_TICKS TOKEN
set -Eeuo pipefail

main() {
  local record=$1 stat fields
  shift
  read -r stat <"/proc/$$/stat"
  read -ra fields <<<"${stat##*) }"
  printf '%s %s %s\n' "$$" "${fields[19]}" "$RL_AGENT_GROUP" >"$record.tmp"
  mv -f -- "$record.tmp" "$record"
  exec "$@"
}

main "$@"
