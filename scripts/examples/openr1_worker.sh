#!/usr/bin/env bash
# Lend GPUs to a run of the OpenR1 examples: start vLLM with the run's settings and join its pool, until Ctrl+C.
#
# Usage: bash scripts/examples/openr1_worker.sh 1.7b|8b|mini [--manager http://HOST:5000] [--token-file FILE] [--gpus 0,1]
#   1.7b   Qwen3-1.7B, one GPU per engine
#   8b     Qwen3-8B, two GPUs per engine
#   mini   Qwen3-1.7B, two GPUs per engine
# Any other flag of scripts/join_pool.sh is handed on, --price and --notice for spot machines.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

EXAMPLES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/examples/example_utils.sh
source "$EXAMPLES/example_utils.sh"

main() {
  local model gpus
  local words=()
  local engine=(--max-model-len 14848 --max-num-seqs 256)
  case ${1:-} in
    1.7b) model=Qwen/Qwen3-1.7B gpus=1 ;;
    8b) model=Qwen/Qwen3-8B gpus=2 ;;
    mini) model=Qwen/Qwen3-1.7B gpus=2 ;;
    -h | --help)
      show_header
      exit 0
      ;;
    *)
      printf "openr1_worker: the first word is 1.7b, 8b or mini, got '%s'; see --help\n" "${1:-}" >&2
      exit 2
      ;;
  esac
  engine+=(--tensor-parallel-size "$gpus")
  has_flag --model "$@" || words+=(--model "$model")
  has_flag --capacity "$@" || words+=(--capacity 256)
  has_flag --engine-args "$@" || words+=(--engine-args "${engine[*]}")
  exec bash "$EXAMPLES/../join_pool.sh" "${words[@]}" "${@:2}"
}

main "$@"
