# Collecting trajectories. Sourced; defines functions only.
# PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

RESUME_CHECKPOINT_PATH='' # the checkpoint that the current rollout goes on with; empty: a fresh one

# Collect a split once, going on with the checkpoint if there is one that this start may take.
# Usage: collect_once <split> <iteration> [--begun-here]
collect_once() {
  local split=$1 iteration=$2 options=()
  RESUME_CHECKPOINT_PATH=''
  if ((PLAN[resume])) || [[ -n ${3:-} ]]; then
    ask next --plan "$PLAN_FILE" --checkpoint "$split" "$iteration" "${@:3}" || return
    RESUME_CHECKPOINT_PATH=$ANSWER
  fi
  if [[ -n $RESUME_CHECKPOINT_PATH ]]; then
    say "going on with $RESUME_CHECKPOINT_PATH"
    options=(--resume)
  fi
  ask rollout --plan "$PLAN_FILE" --iteration "$iteration" --split "$split" "${options[@]}" || return
  printf '%s\n' "$ANSWER"
}

# Collect a split; if the engine is lost on the way (75), start it again and go on, as often as one may
# try to start it. An external engine is not ours to start.
# Usage: collect_split <split> <iteration>
collect_split() {
  local attempt status begun=()
  for ((attempt = 1; ; attempt++)); do
    status=0
    collect_once "$@" "${begun[@]}" || status=$?
    ((status == 75 && attempt < PLAN[start_attempts] && !PLAN[debug_mode])) || return "$status"
    say "the engine was lost (attempt $attempt of ${PLAN[start_attempts]}): making sure that one runs"
    ensure_vllm_running "$2"
    begun=(--begun-here)
  done
}

# Usage: rollout_atomic_train <iteration>
rollout_atomic_train() {
  collect_split train "$1"
}

# Usage: rollout_atomic_test <iteration>
rollout_atomic_test() {
  collect_split test "$1"
}
