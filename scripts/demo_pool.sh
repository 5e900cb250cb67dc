#!/usr/bin/env bash
# Watch a rollout pool on this machine's CPU, in under three minutes: two real engines work on a batch, one is
# killed, or with --notice told to leave, another joins, and nothing is lost.
#
# Usage: bash scripts/demo_pool.sh [--requests 256] [--notice] [--out DIR]
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$SCRIPTS/shell_functions/common_utils.sh"

main() {
  exec_python "$PROJECT_ROOT/benchmarks/pool/demo.py" "$@"
}

main "$@"
