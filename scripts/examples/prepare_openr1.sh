#!/usr/bin/env bash
# Task files of the OpenR1 examples: 10,000 problems of OpenR1-Math-220k's extended part, a tenth of them held out.
#
# Usage: bash scripts/examples/prepare_openr1.sh DIR [--source FOLDER] [more of: python -m rl_agent.cli openr1]
#   DIR               gets train.jsonl and test.jsonl; the --data-path of the examples
#   --source FOLDER   Parquet files that are here already, instead of the hub
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

EXAMPLES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/examples/example_utils.sh
source "$EXAMPLES/example_utils.sh"
# shellcheck source=scripts/shell_functions/common_utils.sh
source "$EXAMPLES/../shell_functions/common_utils.sh"

main() {
  local words=()
  if has_flag --help "$@" || has_flag -h "$@" || (($# == 0)) || [[ $1 == -* ]]; then
    show_header
    has_flag --help "$@" || has_flag -h "$@" || exit 2
    exit 0
  fi
  has_flag --source "$@" || words+=(--source open-r1/OpenR1-Math-220k)
  has_flag --source "$@" || has_flag --subset "$@" || words+=(--subset extended)
  has_flag --limit "$@" || words+=(--limit 10000)
  has_flag --test-fraction "$@" || words+=(--test-fraction 0.1)
  exec_python -P -m rl_agent.cli openr1 --out "$1" "${words[@]}" "${@:2}"
}

main "$@"
