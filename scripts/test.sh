#!/usr/bin/env bash
# Set up the environment (shared with quickstart.sh) and run the tests; all but those of gpu need no GPU.
# Usage: bash scripts/test.sh [fast|unit|shell|integration|chaos|lint|extended|gpu|all] [pytest options, tests…]
#   all (default)  lint; what waits more than it computes, two tests per core; then what starts whole runs or trains,
#                  one file per core; of each part the ten slowest tests are named
#   fast           the unit tests of the folders that differ from the last commit, and the architecture; a minute
#   unit           2 to 3 minutes on two cores
#                  Where tests are named, a kind runs those alone: test.sh unit tests/unit/tasks
#   extended       what takes long and is left out of the others: more real engines and nodes, more chaos,
#                  more random examples a property
#   gpu            the README's loops on this machine's GPUs, one or more; about 6 minutes
# With CI=true a part that cannot be installed (Slurm, Chromium, …) fails; else its tests are skipped.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # called as `sh SCRIPT`
set -Eeuo pipefail
shopt -s inherit_errexit

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly PROJECT_ROOT
readonly MAX_TRIED_AGAIN=5 # more than these are no accident
readonly SHELLCHECK='.venv/bin/shellcheck -x scripts/*.sh scripts/shell_functions/*.sh scripts/slurm/* scripts/examples/*.sh .ci/run'
readonly COLLECT='.venv/bin/python -m pytest tests --collect-only -qq &>/dev/null || true' # compiles the tests once for all workers
# shellcheck source=scripts/shell_functions/setup_utils.sh
source "$PROJECT_ROOT/scripts/shell_functions/setup_utils.sh"

# mypy computes on one core for most of a minute; what else is given runs beside it.
# Usage: lint [command lines…]
lint() {
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
  printf '%s\n' .venv/bin/mypy "$SHELLCHECK" "$@" | xargs -d '\n' -P 2 -n 1 bash -c
}

# Usage: failed_tests
failed_tests() {
  .venv/bin/python -c 'import json; print(*json.load(open(".pytest_cache/v/cache/lastfailed")), sep="\n")'
}

# What waits more than it computes shares the cores. What starts whole runs, or trains, computes on one core, and
# most of its time imports its libraries: as many files at a time as there are cores, those that take minutes first.
# The unit tests that import a trainer are with them: with the others, each worker would import transformers.
# Options may choose tests of any kind: then all run together.
# Real processes on a busy machine: the few that failed are tried once more with the machine to themselves, and
# what passes then is a flaky test, named as one at the end.
# Usage: run_all [pytest options…]
run_all() {
  local status=0 failed
  local -a computing=(tests/integration/{runs,slurm,trainer,training,library}
    tests/unit/{trainer,monitor/test_catalog.py})
  local -a others=("${computing[@]}" tests/gpu)
  (($# == 0)) || exec .venv/bin/python -m pytest "$@"
  .venv/bin/python -m pytest tests "${others[@]/#/--ignore=}" -n $((2 * $(nproc))) --maxprocesses 8 --dist worksteal \
    --durations 10 --cache-clear || status=$?
  OMP_NUM_THREADS=1 .venv/bin/python -m pytest "${computing[@]}" -n "$(nproc)" --maxprocesses 4 --dist loadfile \
    --no-loadscope-reorder --durations 10 || status=$?
  ((status == 1)) || return "$status"
  failed=$(failed_tests)
  (($(wc -l <<<"$failed") <= MAX_TRIED_AGAIN)) || return 1
  ! grep -qv '^tests/' <<<"$failed" || return 1 # a worker that found other tests: with it, all would run again
  say "test.sh: running the failed tests once more"
  .venv/bin/python -m pytest --last-failed || return
  say "test.sh: FLAKY, failed once and then passed:"$'\n'"$failed"
}

# Print the unit tests of what differs from the last commit: of a module those of its folder.
# Usage: tests_of_change
tests_of_change() {
  local file folder
  printf 'tests/unit/test_architecture.py\n'
  { git diff --name-only HEAD && git ls-files --others --exclude-standard; } | while read -r file; do
    case $file in
      rl_agent/*.py) folder=tests/unit/$(dirname "${file#rl_agent/}") ;;
      tests/unit/*.py) folder=$(dirname "$file") ;;
      configs/*) folder=tests/unit/config ;;
      docs/* | README.md) folder=tests/unit/docs ;;
      *) continue ;;
    esac
    [[ ! -d $folder ]] || printf '%s\n' "${folder%/.}"
  done | sort -u
}

# Usage: run_kind <folder below tests> [pytest options, tests…]
run_kind() {
  local word
  local -a tests=("tests/$1")
  for word in "${@:2}"; do
    [[ ! -e ${word%%::*} ]] || tests=() # named ones
  done
  exec .venv/bin/python -m pytest "${tests[@]}" "${@:2}"
}

main() {
  local what=all extra
  local -a changed parallel=(-n logical --maxprocesses 8)
  end_on_signals
  case ${1:-} in
    fast | unit | shell | integration | chaos | lint | extended | gpu | all) what=$1 && shift ;;
    -h | --help) sed -n '2,12s/^# //p' "${BASH_SOURCE[0]}" && return ;;
    '' | -*) ;;
    *)
      say "test.sh: '$1' is none of fast, unit, shell, integration, chaos, lint, extended, gpu, all; see --help"
      exit 2
      ;;
  esac
  extra=$(detect_extra)
  [[ $what != gpu || $extra == gpu ]] || refuse "test.sh gpu: nvidia-smi shows no GPU on this machine"
  check_machine "$extra"
  ensure_system_packages
  if [[ $what =~ ^(integration|extended|all)$ ]]; then
    ensure_slurm
    ensure_chromium
    ensure_bubblewrap
  fi
  ensure_environment "$extra"
  cd "$PROJECT_ROOT"
  if [[ $what == extended ]]; then
    ensure_mooncake
  fi
  unset PYTHONDONTWRITEBYTECODE # else every process that a test starts compiles the package anew
  case $what in
    lint) lint ;;
    extended) exec .venv/bin/python -m pytest -m "extended or hypothesis" --hypothesis-profile=thorough "$@" ;;
    gpu) run_kind gpu -m gpu "$@" ;;
    unit) run_kind unit "${parallel[@]}" "$@" ;;
    fast)
      mapfile -t changed < <(tests_of_change)
      run_kind unit "${parallel[@]}" "${changed[@]}" "$@"
      ;;
    all)
      lint "$COLLECT"
      run_all "$@"
      ;;
    *) run_kind "$what" "$@" ;;
  esac
}

main "$@"
