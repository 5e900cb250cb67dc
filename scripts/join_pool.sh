#!/usr/bin/env bash
# Lend this machine's engine to a rollout pool: start it, register it, report its load, drain on TERM or on a
# cloud's notice, and end what was started. Several on one machine need no hand-picked ports.
#
# Usage: bash scripts/join_pool.sh --manager http://HOST:5000 [--gpus 0,1] [--engine vllm|sglang] [--price 2.66]
#   --help shows every flag
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$SCRIPTS/shell_functions/common_utils.sh"

main() {
  exec_python -P -m rl_agent.cli join-pool "$@"
}

main "$@"
