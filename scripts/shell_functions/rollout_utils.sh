# Collecting trajectories. Sourced; defines functions only.
# PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

# Collect this node's part of a split, going on with what the run has begun; on the master until the split is
# whole. If the engine is lost on the way (75), start it again, as often as one may try to start it; an
# external engine is not ours to start, and a node that the run has lost has nothing to go on with.
# Usage: collect_split <split> <iteration>
collect_split() {
  local attempt status
  for ((attempt = 1; ; attempt++)); do
    status=0
    ask rollout --plan "$PLAN_FILE" --iteration "$2" --split "$1" --resume if-begun \
      --min-weight-version "$MIN_WEIGHT_VERSION" || status=$?
    ((status == 75 && attempt < PLAN[start_attempts] && !PLAN[debug_mode])) || break
    ask flag check --plan "$PLAN_FILE" || return
    say "the engine was lost (attempt $attempt of ${PLAN[start_attempts]}): making sure that one runs"
    ensure_vllm_running "$2"
  done
  ((status != 0)) || printf '%s\n' "$ANSWER"
  return "$status"
}

# Usage: rollout_atomic_train <iteration>
rollout_atomic_train() {
  collect_split train "$1"
}

# Usage: rollout_atomic_test <iteration>
rollout_atomic_test() {
  collect_split test "$1"
}
