#!/usr/bin/env bash
# The baseline of openr1_1.7b_streamed.sh: the same objective on 256 prompts per step, on the GPUs of this machine alone; all of
# them generate an iteration's episodes, then train on them, in turns.
#
# Usage: bash scripts/examples/openr1_1.7b_sync.sh --data-path DIR --log-path DIR [flags] [key=value…]
#   --data-path DIR   task files, made by scripts/examples/prepare_openr1.sh
#   --log-path DIR    folder of this experiment
#   --dry-run         check everything and print the plan
# Any other flag of scripts/run.sh and any key=value is handed on; --resume goes on after a stop.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

# shellcheck source=scripts/examples/example_utils.sh
source "$(dirname "${BASH_SOURCE[0]}")/example_utils.sh"

main() {
  run_experiment openr1_sync 525 "$@"
}

main "$@"
