#!/usr/bin/env bash
# GRPO on OpenR1-Math with Qwen3-1.7B on one machine with four GPUs, 64 prompts per step: two GPUs train, and
# generate while that saves waiting; in another terminal, scripts/examples/openr1_worker.sh mini --gpus 2,3 adds an
# engine on the others.
#
# Usage: bash scripts/examples/openr1_1.7b_mini.sh --data-path DIR --log-path DIR [flags] [key=value…]
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
  run_experiment openr1_mini 2100 "$@"
}

main "$@"
