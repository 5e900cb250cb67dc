# Collecting trajectories. Sourced; defines functions only.
# PLAN, PHASE and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

# Collect this node's part of a split, going on with what the run has begun; on the master until the split is
# whole. If the engine is lost on the way (75), start it again, as often as one may try to start it; an
# external engine is not ours to start, and a node that the run has lost has nothing to go on with.
# Usage: collect_split <split>
collect_split() {
  local attempt status
  for ((attempt = 1; ; attempt++)); do
    status=0
    run_verb rollout --plan "$PLAN_FILE" --iteration "${PHASE[iteration]}" --split "$1" --resume if-begun \
      --min-weight-version "${PHASE[min_weight_version]}" || status=$?
    ((status == 75 && attempt < PLAN[start_attempts] && !PLAN[debug_mode])) || return "$status"
    run_verb flag check --plan "$PLAN_FILE"
    say "the engine died (attempt $attempt of ${PLAN[start_attempts]}): restarting it if needed"
    step ensure_vllm_running
    [[ -z ${PHASE[outcome]} ]] || return 0
  done
}

# Usage: rollout_atomic_train
rollout_atomic_train() {
  collect_split train
}

# Usage: rollout_atomic_test
rollout_atomic_test() {
  collect_split test
}
