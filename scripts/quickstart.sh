#!/usr/bin/env bash
# Set up everything and watch a small model get better at a task on this machine, CPU or GPU:
# real rollouts from a real vLLM server, real LLaMA-Factory updates.
#
# Usage: bash scripts/quickstart.sh [--iterations N] [--seed N] [--out DIR] [key=value…]
#   --iterations N   trips round the loop (default 4)
#   --seed N         seed of the tasks, the model and the loop (default 0)
#   --out DIR        where tasks, model and logs go (default quickstart/ in the project)
#   key=value        configuration, as for scripts/run.sh
# A second call skips what is done; after Ctrl+C the same call goes on.
set -Eeuo pipefail
shopt -s inherit_errexit

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly PROJECT_ROOT
readonly PYTHON_BIN=$PROJECT_ROOT/.venv/bin/python
# shellcheck source=scripts/shell_functions/setup_utils.sh
source "$PROJECT_ROOT/scripts/shell_functions/setup_utils.sh"

ITERATIONS=4
SEED=0
OUT=$PROJECT_ROOT/quickstart
OVERRIDES=()
DEVICE_SETTINGS=() # a GPU host takes the GPU's engine and trainer for the same small model
readonly GPU_SETTINGS=(
  engine=gpu engine.max_model_len=128 engine.enforce_eager=true
  trainer=llamafactory trainer.gradient_accumulation_steps=1 trainer.preprocessing_num_workers=1
)

# Usage: parse_arguments <arguments…>
parse_arguments() {
  while (($#)); do
    case $1 in
      -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      --iterations | --seed | --out)
        (($# >= 2)) || usage_error "$1 needs a value"
        [[ $1 == --out || $2 =~ ^[0-9]+$ ]] || usage_error "$1 needs a whole number, got '$2'"
        printf -v "$(tr '[:lower:]' '[:upper:]' <<<"${1#--}")" %s "$2"
        shift
        ;;
      -*) usage_error "unknown flag '$1'; --help lists them" ;;
      *=*) OVERRIDES+=("$1") ;;
      *) usage_error "'$1' is neither a flag nor key=value" ;;
    esac
    shift
  done
  ((ITERATIONS > 0)) || usage_error "--iterations must be at least 1"
}

# Usage: usage_error <words…>
usage_error() {
  say "quickstart: $*"
  exit 2
}

# Run a command to its end and return its status; INT and TERM are handed on to it, so that nothing outlives
# this script. Job control keeps bash from making the child deaf to INT.
# Usage: run_owned <command…>
run_owned() {
  local status=0 child
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  trap 'kill -INT "$child" 2>/dev/null' INT
  trap 'kill -TERM "$child" 2>/dev/null' TERM
  while kill -0 "$child" 2>/dev/null; do
    status=0
    wait "$child" || status=$?
  done
  trap - INT TERM
  return "$status"
}

# Run a command and add its span to the run's timeline.
# Usage: timed <name> <command…>
timed() {
  local name=$1 start=$EPOCHREALTIME
  shift
  say "quickstart: $name"
  "$@"
  printf '{"name": "%s", "iteration": 0, "start": %s, "end": %s}\n' "$name" "$start" "$EPOCHREALTIME" \
    >>"$OUT/run/timeline.jsonl"
}

# Run the loop to its end, or on from where an earlier call was interrupted, or not at all if it is done.
# Usage: run_once <rl-phase> <phase arguments…>
run_once() {
  local phase=$1 resume=() plan=$OUT/run/runs/latest/plan.json
  shift
  [[ ! -f $OUT/.$phase-done ]] || return 0
  if [[ -f $plan ]] && grep -q "\"rl_phase\": \"$phase\"" "$plan"; then
    resume=(--resume)
    [[ -n $("$PYTHON_BIN" -m rl_agent.cli next --plan "$plan") ]] || { touch "$OUT/.$phase-done" && return; }
  fi
  run_owned bash "$PROJECT_ROOT/scripts/run.sh" --data-path "$OUT/tasks" --log-path "$OUT/run" \
    --rl-phase "$phase" "$@" "${resume[@]}" \
    +experiment=quickstart "model_config.base_model=$OUT/base-model" "seed=$SEED" \
    "${DEVICE_SETTINGS[@]}" "${OVERRIDES[@]}"
  touch "$OUT/.$phase-done"
}

# Refuse to mix two experiments in one folder.
# Usage: check_settings
check_settings() {
  local settings="iterations=$ITERATIONS seed=$SEED ${OVERRIDES[*]}" before
  [[ -f $OUT/.settings ]] || { printf '%s\n' "$settings" >"$OUT/.settings" && return; }
  before=$(<"$OUT/.settings")
  [[ $before == "$settings" ]] ||
    usage_error "$OUT was begun with '$before', this call says '$settings'; name another --out"
}

# Usage: show_result
show_result() {
  "$PYTHON_BIN" -m rl_agent.cli report --log-path "$OUT/run"
  cat <<EOF

On a GPU node, the same tasks with a real model:
  bash scripts/run.sh --data-path $OUT/tasks --log-path $OUT/gpu-run --rl-phase both --eval-interval 6 \\
      model_config.base_model=Qwen/Qwen3-VL-8B-Instruct
EOF
}

main() {
  parse_arguments "$@"
  local extra start=$EPOCHREALTIME
  extra=$(detect_extra)
  check_machine "$extra"
  [[ $extra == cpu ]] || DEVICE_SETTINGS=("${GPU_SETTINGS[@]}")
  mkdir -p "$OUT/run"
  OUT=$(cd "$OUT" && pwd)
  check_settings
  if [[ ! -f $(environment_stamp "$extra") ]]; then
    timed system_packages ensure_system_packages
    timed install ensure_environment "$extra"
  fi
  if [[ ! -f $OUT/.rollout-done ]]; then
    timed tasks run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/make_tasks.py" quickstart \
      --out "$OUT/tasks" --seed "$SEED"
    timed base_model run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/teach_base_model.py" \
      --out "$OUT/base-model" --seed "$SEED"
    run_once both --eval-interval 1 --max-iterations "$ITERATIONS"
    run_once rollout --rollout-split eval-only --max-iterations 1
  fi
  show_result
  printf 'quickstart: %.0f s in this call; everything is in %s\n' \
    "$(awk "BEGIN {print $EPOCHREALTIME - $start}")" "$OUT"
}

main "$@"
