#!/usr/bin/env bash
# Watch training steps stream on this machine's CPU, in under four minutes: optimizer steps are made while a rollout
# goes on, and a second real engine joins in the middle of one.
#
# Usage: bash scripts/examples/demo_step.sh [--tasks 64] [--out DIR]
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

EXAMPLES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$EXAMPLES/../shell_functions/common_utils.sh"

main() {
  exec_python "$EXAMPLES/../../benchmarks/pool/step_demo.py" "$@"
}

main "$@"
