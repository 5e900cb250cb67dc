# Collecting trajectories. Sourced; defines functions only.
# PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

RESUME_CHECKPOINT_PATH='' # the checkpoint that the current rollout goes on with; empty: a fresh one

# Usage: collect_split <split> <iteration>
collect_split() {
  local split=$1 iteration=$2 options=()
  if ((${PLAN[resume]})); then
    RESUME_CHECKPOINT_PATH=$(verb next --plan "$PLAN_FILE" --checkpoint "$split" "$iteration")
  fi
  if [[ -n $RESUME_CHECKPOINT_PATH ]]; then
    say "going on with $RESUME_CHECKPOINT_PATH"
    options=(--resume)
  fi
  run_verb rollout --plan "$PLAN_FILE" --iteration "$iteration" --split "$split" "${options[@]}"
}

# Usage: rollout_atomic_train <iteration>
rollout_atomic_train() {
  collect_split train "$1"
}

# Usage: rollout_atomic_test <iteration>
rollout_atomic_test() {
  collect_split test "$1"
}
