# The streaming trainer of a run (trainer=grpo): one process group on each node that trains, which lives as long
# as the loop. Sourced; defines functions and constants only. PLAN and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

readonly TRAINER_GRACE_S=60 # a trainer that is told to stop saves a checkpoint first
TRAINER_STARTS=0            # numbers the trainer's logs
TRAINER_FAILURES=0          # how often it ended without a node being lost
TRAINER_LOG=''              # of the last start
TRAINING=''                 # ITERATION/PHASE of the last start; empty: this node has no part in it
TRAINING_RANKS=''           # who trains, with commas
IS_TRAINING_LOST=0          # the trainer ended before this phase could go on: the master orders the phase anew
MIN_WEIGHT_VERSION=0        # what engines must serve to be asked in this phase; 0: anything

# Let the trainer run on the nodes that carry out this order. They meet as for an update: the master says who
# they are and where, or that the trainer that runs goes on.
# Usage: ensure_trainer_running <iteration>
ensure_trainer_running() {
  local outcome ranks address
  IS_TRAINING_LOST=0
  ((PLAN[is_streaming])) || return 0
  if ((PLAN[is_master])); then decide_training "$1"; fi
  wait_for_phase "$1" "prepared-$ORDER"
  read -r outcome ranks address <<<"$ANSWER"
  [[ $outcome == 'done' ]] || return 0
  stop_trainer "$ranks"
  start_trainer "$1" "$ranks" "$address"
}

# A trainer is started where none runs, and where nodes have gone or come since: on as many as there are now.
# Usage: decide_training <iteration>
decide_training() {
  local outcome=skipped ranks
  ask flag ranks --plan "$PLAN_FILE"
  ranks=$ANSWER
  if [[ -z ${PGID_OF[trainer]:-} || $ranks != "$TRAINING_RANKS" ]]; then outcome='done'; fi
  ensure_pool_running # that is where its weights go
  ask flag decide --plan "$PLAN_FILE" --iteration "$1" --phase "prepared-$ORDER" --outcome "$outcome" \
    --ranks "$ranks"
}

# One that waits for a node that is gone cannot save any more.
# Usage: stop_trainer <ranks of the next one>
stop_trainer() {
  local rank grace_s=$TRAINER_GRACE_S
  for rank in ${TRAINING_RANKS//,/ }; do
    [[ ,$1, == *",$rank,"* ]] || grace_s=$STOP_GRACE_S
  done
  stop_group trainer "$grace_s"
}

# Usage: start_trainer <iteration> <ranks> <master-address>
start_trainer() {
  local node_rank
  TRAINING='' TRAINING_RANKS=$2
  node_rank=$(node_rank_in "$2") || return 0 # came too late for this one
  TRAINING=$1/train-$ORDER
  TRAINER_STARTS=$((TRAINER_STARTS + 1))
  TRAINER_LOG=${PLAN[logs]}/trainer-${PLAN[attempt]}-$TRAINER_STARTS.log
  say "starting the trainer; its log is $TRAINER_LOG"
  start_group trainer "$PYTHON_BIN" -m rl_agent.cli stream-train --plan "$PLAN_FILE" --start "$ORDER" \
    --nodes "$(count_ranks "$2")" --node-rank "$node_rank" --master "$3" >"$TRAINER_LOG" 2>&1
}

# Wait until the trainer has published what a phase needs; sets MIN_WEIGHT_VERSION. Where it ends before, on
# any node, IS_TRAINING_LOST says so: with the next order it is started again, from its checkpoint.
# Usage: await_version <phase> <iteration>
await_version() {
  local status=0 why
  ((PLAN[is_streaming])) || return 0
  ask await-version --plan "$PLAN_FILE" --phase "$1" --iteration "$2" --pid "${PGID_OF[trainer]:-0}" \
    --training "$TRAINING" || status=$?
  why=$ANSWER
  if ((status == 75)); then
    ask flag check --plan "$PLAN_FILE" || return
    IS_TRAINING_LOST=1
    end_trainer "$why"
    return
  fi
  ((status != 0)) || MIN_WEIGHT_VERSION=$ANSWER
  return "$status"
}

# Returns the status of the trainer that ended where it is not started again: one that fails by itself is, as
# often as trainer.max_restarts says; that of a lost node always, if the run goes on.
# Usage: end_trainer <failed|lost>
end_trainer() {
  local status=0
  [[ -n ${PGID_OF[trainer]:-} ]] || return 0
  wait_group trainer 1 || status=$?
  say "the trainer ended (status $status); $TRAINER_LOG ends:"
  show_end "$TRAINER_LOG"
  ((PLAN[is_master])) || return 0
  [[ $1 == lost ]] || TRAINER_FAILURES=$((TRAINER_FAILURES + 1))
  ((status != 78 && TRAINER_FAILURES <= PLAN[trainer_restarts])) || return $((status ? status : 70))
}

# After the last iteration the trainer ends by itself.
# Usage: finish_training
finish_training() {
  ((PLAN[is_streaming])) && [[ -n ${PGID_OF[trainer]:-} ]] || return 0
  wait_group trainer "$TRAINER_GRACE_S"
}
