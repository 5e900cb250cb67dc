#!/usr/bin/env bash
# Let rollout workers come and go on this machine as spot machines do: by a trace, or by a fixed schedule (one
# more every 1800 s up to four, then the oldest is replaced).
#
# Usage: bash scripts/emulate_spot.sh [--trace trace.csv] [--time-scale 0.1] [--until-s S] [-- join_pool.sh's flags]
#   --help shows every flag
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$SCRIPTS/shell_functions/common_utils.sh"

main() {
  exec_python -P "$SCRIPTS/emulate_spot.py" "$@"
}

main "$@"
