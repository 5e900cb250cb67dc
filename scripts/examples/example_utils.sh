# What the examples share. Sourced; defines functions only.
# shellcheck shell=bash

# shellcheck source=scripts/shell_functions/argument_utils.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell_functions/argument_utils.sh"

# Print the comment at the top of the calling script.
# Usage: show_header
show_header() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"
}

# Become run.sh with an experiment of configs/experiment/, evaluated every hundred iterations unless told otherwise.
# Usage: run_experiment <experiment> <iterations> <words of the user…>
run_experiment() {
  local experiment=$1 iterations=$2 words=(--rl-phase both)
  shift 2
  if has_flag --help "$@" || has_flag -h "$@"; then
    show_header
    exit 0
  fi
  has_flag --eval-interval "$@" || words+=(--eval-interval 100)
  has_flag --max-iterations "$@" || words+=(--max-iterations "$iterations")
  exec bash "$(dirname "${BASH_SOURCE[0]}")/../run.sh" "${words[@]}" "+experiment=$experiment" "$@"
}
