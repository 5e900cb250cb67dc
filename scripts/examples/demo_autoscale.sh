#!/usr/bin/env bash
# Watch a pool grow while its rollouts get longer, and shrink again, on this machine's CPU: `pool scale` starts real
# engines through its provider `command`, and replaces one that is killed.
#
# Usage: bash scripts/examples/demo_autoscale.sh [--simulated] [--out DIR]
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

EXAMPLES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$EXAMPLES/../shell_functions/common_utils.sh"

main() {
  exec_python "$EXAMPLES/../../benchmarks/pool/autoscale_demo.py" "$@"
}

main "$@"
