#!/usr/bin/env bash
# Watch a preemption on this machine's CPU, in under three minutes: one of two real engines is killed in the middle of
# its work, or with --notice told to leave; its requests go on elsewhere with their tokens.
#
# Usage: bash scripts/examples/demo_preemption.sh [--requests 256] [--notice] [--out DIR]
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

EXAMPLES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

main() {
  exec bash "$EXAMPLES/../demo_pool.sh" "$@"
}

main "$@"
