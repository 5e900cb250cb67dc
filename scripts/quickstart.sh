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

# The loop, then one evaluation of the last model; --resume if an earlier call was interrupted.
# Usage: run_loop
run_loop() {
  local resume=() common=(--data-path "$OUT/tasks" --log-path "$OUT/run")
  local settings=(+experiment=quickstart "model_config.base_model=$OUT/base-model" "seed=$SEED" "${OVERRIDES[@]}")
  if [[ ! -f $OUT/.loop-done ]]; then
    [[ ! -d $OUT/run/runs ]] || resume=(--resume)
    bash "$PROJECT_ROOT/scripts/run.sh" "${common[@]}" --rl-phase both --eval-interval 1 \
      --max-iterations "$ITERATIONS" "${resume[@]}" "${settings[@]}"
    touch "$OUT/.loop-done"
  fi
  bash "$PROJECT_ROOT/scripts/run.sh" "${common[@]}" --rl-phase rollout --rollout-split eval-only \
    --max-iterations 1 "${settings[@]}"
}

# Usage: show_result
show_result() {
  "$PYTHON_BIN" -m rl_agent.cli report --log-path "$OUT/run"
  cat <<EOF

On a GPU node, the same loop with a real model and your own tasks:
  bash scripts/run.sh --data-path <folder with train.jsonl and test.jsonl> --log-path <folder> \\
      --rl-phase both --eval-interval 6 model_config.base_model=Qwen/Qwen3-VL-8B-Instruct
EOF
}

main() {
  parse_arguments "$@"
  local extra start=$EPOCHREALTIME
  extra=$(detect_extra)
  check_machine "$extra"
  mkdir -p "$OUT/run"
  OUT=$(cd "$OUT" && pwd)
  if [[ ! -f $(environment_stamp "$extra") ]]; then
    timed system_packages ensure_system_packages
    timed install ensure_environment "$extra"
  fi
  if [[ ! -f $OUT/.done ]]; then
    timed tasks "$PYTHON_BIN" "$PROJECT_ROOT/data/make_tasks.py" quickstart --out "$OUT/tasks" --seed "$SEED"
    timed base_model "$PYTHON_BIN" "$PROJECT_ROOT/data/teach_base_model.py" --out "$OUT/base-model" --seed "$SEED"
    run_loop
    touch "$OUT/.done"
  fi
  show_result
  printf 'quickstart: %.0f s in this call; everything is in %s\n' \
    "$(awk "BEGIN {print $EPOCHREALTIME - $start}")" "$OUT"
}

main "$@"
