# What the Slurm jobs share: one command on each node, drained before Slurm ends it. Sourced by the sbatch files;
# defines functions and constants only.
# shellcheck shell=bash

# shellcheck source=scripts/shell_functions/argument_utils.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell_functions/argument_utils.sh"

readonly STATUS_OF_TERM=143 # what run.sh exits with once TERM has drained it
NUM_SIGNALS=0               # how often this shell got TERM

# The value of a flag, given as one word or two.
# Usage: value_of <flag> <arguments…>
value_of() {
  local flag=$1
  shift
  while (($#)); do
    case $1 in
      "$flag") printf '%s\n' "${2:-}" && return ;;
      "$flag="*) printf '%s\n' "${1#*=}" && return ;;
    esac
    shift
  done
}

# `1,1,…`: every node takes the same share.
# Usage: equal_weights <number-of-nodes>
equal_weights() {
  local weights
  printf -v weights '%*s' "$1" ''
  weights=${weights// /1,}
  printf '%s\n' "${weights%,}"
}

# Usage: is_started_again
is_started_again() {
  ((${SLURM_RESTART_COUNT:-0} > 0))
}

# Whether a run was started in the log path, so that there is something to go on with.
# Usage: has_begun <run.sh's arguments…>
has_begun() {
  [[ -e $(value_of --log-path "$@")/runs/latest ]]
}

# This job's name for Slurm's commands. The plain number of an array's task can mean the whole array.
# Usage: job_name
job_name() {
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    printf '%s_%s\n' "$SLURM_ARRAY_JOB_ID" "$SLURM_ARRAY_TASK_ID"
  else
    printf '%s\n' "$SLURM_JOB_ID"
  fi
}

# TERM for this shell: a cancelled or requeued job's tasks got it too, and Slurm refuses to send it again. Where
# it came to this shell alone it is passed on, by scancel: srun itself would answer TERM by killing its tasks.
# Usage: on_term
# shellcheck disable=SC2329
on_term() {
  NUM_SIGNALS=$((NUM_SIGNALS + 1))
  scancel --quiet --signal=TERM "$(job_name).0" 2>/dev/null || true
}

# Run run.sh once on each node to the end of the last. The exit status is the master's, or the highest of those
# that join. If they ended because Slurm drained them, the job goes back into the queue.
# Usage: run_on_nodes <project-folder> <run.sh's arguments…>
run_on_nodes() {
  local options status signals
  options=(--ntasks-per-node=1 --nodes="$SLURM_JOB_NUM_NODES" --cpu-bind=none --mpi=none --label)
  # What becomes of the others when one node fails is decided by the run.
  options+=(--no-kill --kill-on-bad-exit=0 --wait=0)
  STATUS_OF_MASTER=$(mktemp) # the master runs on this host: it is the first of the job's nodes
  export STATUS_OF_MASTER
  trap on_term TERM
  srun "${options[@]}" bash "$1/scripts/slurm/node.sh" "${@:2}" &
  while true; do
    signals=$NUM_SIGNALS
    status=0
    wait $! || status=$?
    ((NUM_SIGNALS > signals)) || break # else wait returned for the signal's sake
  done
  [[ ! -s $STATUS_OF_MASTER ]] || status=$(<"$STATUS_OF_MASTER")
  rm -f -- "$STATUS_OF_MASTER"
  # TERM for this shell: someone has ended the job, or Slurm itself takes it back.
  if ((status == STATUS_OF_TERM && NUM_SIGNALS == 0)); then queue_again; fi
  exit "$status"
}

# When this job was queued, in seconds of the epoch; nothing where Slurm does not say.
# Usage: queued_at
queued_at() {
  local submitted
  submitted=$(squeue --noheader --jobs="$(job_name)" --format=%V)
  date -d "$submitted" +%s 2>/dev/null || true
}

# Put this job back into the queue, unless someone has ended it meanwhile.
# Usage: queue_again
queue_again() {
  local state
  state=$(squeue --noheader --jobs="$(job_name)" --format=%T)
  [[ $state == RUNNING ]] || return 0
  printf 'drained; job %s goes back into the queue\n' "$(job_name)" >&2
  scontrol requeue "$(job_name)"
}
