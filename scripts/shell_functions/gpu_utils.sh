# GPU memory between phases. Sourced; defines functions only.
# PLAN, PHASE and the state variables are shared with run.sh.
# shellcheck shell=bash disable=SC2004,SC2034,SC2154

# Wait until the GPUs' memory is free again; fails with 124, naming the processes that hold it. Never
# touches an external engine's memory.
# Usage: wait_for_gpu_memory_clear
wait_for_gpu_memory_clear() {
  ((${PLAN[num_gpus]} > 0 && !${PLAN[debug_mode]})) || return 0
  run_verb gpu wait --plan "$PLAN_FILE"
}

# End what is left of the training that this run started, and nothing else.
# Usage: cleanup_deepspeed_processes
cleanup_deepspeed_processes() {
  stop_group training
}
