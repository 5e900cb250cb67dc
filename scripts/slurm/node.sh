#!/usr/bin/env bash
# One node's part of a Slurm job: run.sh, with the rank that Slurm's numbering gives this node.
#
# Slurm sends TERM to every process of a node at once. Of run.sh's own, one may end before run.sh has seen its
# TERM, and run.sh then ends with that one's status; here it becomes 143, so that the job knows it was drained.
# Usage: node.sh <run.sh's arguments, but for --worker…>
set -Eeuo pipefail
shopt -s inherit_errexit

SLURM_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/slurm/slurm_utils.sh
source "$SLURM_DIR/slurm_utils.sh"

# The master's status is the job's. Without a master the others have nothing to do, and one that was refused
# before the run began cannot tell them.
# Usage: report_master <status>
report_master() {
  printf '%s\n' "$1" >"$STATUS_OF_MASTER"
  (($1 == 0 || NUM_SIGNALS > 0 || SLURM_JOB_NUM_NODES == 1)) || scancel --signal=TERM "$(job_name).0"
}

main() {
  local words=("$@") status=0 is_master=0
  if ! has_flag --join "$@"; then
    words+=(--worker "$SLURM_NODEID")
    is_master=$((SLURM_NODEID == 0))
  fi
  trap 'NUM_SIGNALS=$((NUM_SIGNALS + 1))' TERM
  bash "$SLURM_DIR/../run.sh" "${words[@]}" || status=$? # in the foreground: the trap waits for its end
  if ((status != 0 && NUM_SIGNALS)); then status=$STATUS_OF_TERM; fi
  if ((is_master)); then report_master "$status"; fi
  exit "$status"
}

main "$@"
