#!/usr/bin/env bash
# Set-up of the Python environment, shared by quickstart.sh and test.sh. Only defines functions and
# constants; the caller sets PROJECT_ROOT.

readonly NEEDED_DISK_GIB=8
readonly NEEDED_MEMORY_GIB=6
readonly DEBIAN_PACKAGES=(libnuma1 g++) # vLLM links libnuma; DeepSpeed compiles at run time
readonly BROWSERS=(chromium-headless-shell chromium) # the first takes a quarter of the processor time of the second
readonly BROWSER_FONTS=(fonts-liberation)             # without, the pages differ from machine to machine
readonly VISION_PACKAGES=(torchvision==0.28.0 requirements/placeholders/torchvision_operators) # as requirements/cpu-overrides.txt says
readonly MOONCAKE_PACKAGE=mooncake-transfer-engine-non-cuda==0.3.13.post1
readonly MOONCAKE_LIBRARIES=(libibverbs1 libnl-3-200 libnl-route-3-200) # which it links also for TCP alone
readonly SLURM_PACKAGES=(slurmctld slurmd slurm-client munge)
readonly RARE_LIBRARIES='modelscope|anthropic|numba|llvmlite|mypyc?|pip|pygame|playwright|fontTools|supervisor'
readonly RARE_PARTS='sympy/(physics|stats|parsing)|torch/testing|transformers/models|vllm/(model_executor/)?models'
readonly NOT_COMPILED="/(tests?|$RARE_LIBRARIES|$RARE_PARTS)/" # nearly half of all files; few are ever imported

# Print a line for a person on stderr.
# Usage: say <words…>
say() { printf '%s\n' "$*" >&2; }

# Let Ctrl+C, TERM and a closed terminal end a script with the status that the shell gives them, once the command
# that runs has ended: what that answered then counts for nothing.
# Usage: end_on_signals
end_on_signals() {
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
}

# Run a command to its end and return its status; signals that end a script are handed on to it, so that
# nothing outlives this one. Job control keeps bash from making the child deaf to INT.
# Usage: run_owned <command…>
run_owned() {
  local status=0 child
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  trap 'kill -INT "$child" 2>/dev/null' INT
  trap 'kill -TERM "$child" 2>/dev/null' TERM
  trap 'kill -HUP "$child" 2>/dev/null' HUP
  while kill -0 "$child" 2>/dev/null; do
    status=0
    wait "$child" || status=$?
  done
  end_on_signals
  return "$status"
}

# Stop with one line and the exit code of a configuration error.
# Usage: refuse <words…>
refuse() {
  say "setup: $*"
  exit 78
}

# Print the extra that fits this machine: gpu or cpu.
# Usage: detect_extra
detect_extra() {
  local gpus=
  gpus=$(nvidia-smi -L 2>/dev/null) || true
  [[ $gpus == *GPU* ]] && echo gpu || echo cpu
}

# Print the first Python that the lock fits; fails if there is none.
# Usage: find_python
find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.11 python3.12; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# Refuse a machine on which the installation or the run cannot end well. Downloads nothing.
# Usage: check_machine <extra>
check_machine() {
  local extra=$1 python free_gib memory_gib needed_gib=$NEEDED_DISK_GIB
  [[ $(uname -sm) == "Linux x86_64" ]] || refuse "Linux on x86_64 is needed, this is $(uname -sm)"
  python=$(find_python) ||
    refuse "Python 3.11 or 3.12 is needed, found $(python3 --version 2>&1); install one or set PYTHON=<path>"
  "$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
    refuse "$python has no venv module; on Debian or Ubuntu: apt-get install python3-venv"
  memory_gib=$(awk '/^MemTotal/ {print int($2 / 1048576)}' /proc/meminfo)
  ((memory_gib >= NEEDED_MEMORY_GIB)) || refuse "$NEEDED_MEMORY_GIB GiB of memory are needed, there are $memory_gib"
  [[ $extra == cpu ]] || needed_gib=$((3 * NEEDED_DISK_GIB))
  [[ -f $(environment_stamp "$extra") ]] && needed_gib=1
  free_gib=$(($(df -Pk "$PROJECT_ROOT" | awk 'NR == 2 {print $4}') / 1048576))
  ((free_gib >= needed_gib)) || refuse "$needed_gib GiB of disk are needed under $PROJECT_ROOT, $free_gib are free"
}

# Install Debian packages, as root or by sudo without a password.
# Usage: install_packages <packages…>
install_packages() {
  local as_root=()
  command -v apt-get >/dev/null || return
  say "setup: installing $*"
  ((EUID == 0)) || as_root=(sudo -n)
  { "${as_root[@]}" apt-get update -q && "${as_root[@]}" apt-get install -y -q --no-install-recommends "$@"; } >&2
}

# Install the Debian packages that are missing.
# Usage: ensure_system_packages
ensure_system_packages() {
  local package missing=()
  command -v apt-get >/dev/null || return 0
  for package in "${DEBIAN_PACKAGES[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  install_packages "${missing[@]}" ||
    refuse "could not install ${missing[*]}; as root: apt-get install ${missing[*]}"
}

# Continue without something that could not be installed; with CI=true, where no test may be skipped in silence, stop.
# Usage: lack <what> <which tests need it>
lack() {
  [[ ${CI:-} != true ]] || refuse "could not install $1, without which $2 are skipped; CI=true allows no such gap"
  say "setup: could not install $1: $2 will be skipped"
}

# Install Slurm's daemons for the tests that start them, unless there are some; without, those tests are skipped.
# Usage: ensure_slurm
ensure_slurm() {
  if PATH=$PATH:/usr/sbin:/sbin type -P munged slurmctld slurmd sbatch >/dev/null; then return 0; fi
  install_packages "${SLURM_PACKAGES[@]}" || lack "${SLURM_PACKAGES[*]}" "the tests with a real Slurm"
}

# Install a browser for the environment `web` and its tests, unless there is one; without, those tests are skipped.
# Usage: ensure_chromium
ensure_chromium() {
  local browser found
  found=$(type -P "${BROWSERS[@]}" chromium-browser google-chrome google-chrome-stable || true) # those there are
  [[ -z $found ]] || return 0
  for browser in "${BROWSERS[@]}"; do
    if install_packages "$browser" "${BROWSER_FONTS[@]}"; then return 0; fi
  done
  lack "${BROWSERS[*]}" "the tests with a real browser"
}

# Install the sandbox for programs that a model writes; without, its tests are skipped.
# Usage: ensure_bubblewrap
ensure_bubblewrap() {
  if type -P bwrap >/dev/null; then return 0; fi
  install_packages bubblewrap || lack bubblewrap "the tests of the sandbox"
}

# Install Mooncake's engine for its tests, once, beside the environment's own packages, and let this process find it.
# Usage: ensure_mooncake
ensure_mooncake() {
  local folder=$PROJECT_ROOT/.venv/mooncake
  local stamp=$folder/.$MOONCAKE_PACKAGE
  if [[ ! -f $stamp ]]; then
    rm -rf "$folder"
    install_packages "${MOONCAKE_LIBRARIES[@]}" || refuse "could not install ${MOONCAKE_LIBRARIES[*]}"
    "$PROJECT_ROOT/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
      --target "$folder" "$MOONCAKE_PACKAGE" || refuse "could not install $MOONCAKE_PACKAGE"
    touch "$stamp"
  fi
  export PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH}
}

# Install what image processors need, once, and let this process and its children find it. It lies beside the
# environment's own packages, for all that shows no images starts faster without it.
# Usage: ensure_vision_packages
ensure_vision_packages() {
  local folder=$PROJECT_ROOT/.venv/vision partial=$PROJECT_ROOT/.venv/vision.partial
  "$PROJECT_ROOT/.venv/bin/python" -P -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torchvision") is None)' &&
    return 0
  if [[ ! -d $folder ]]; then
    rm -rf "$partial"
    (
      cd "$PROJECT_ROOT"
      .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$partial" \
        "${VISION_PACKAGES[0]}" "./${VISION_PACKAGES[1]}"
    ) || refuse "could not install ${VISION_PACKAGES[0]}, which reads screenshots"
    echo 'import torchvision_operators' >"$partial/sitecustomize.py" # a .pth file counts in an environment only
    mv "$partial" "$folder"
  fi
  export PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH}
}

# Print the file whose presence says that the environment is whole and made from these requirements.
# Usage: environment_stamp <extra>
environment_stamp() {
  local extra=$1 digest
  digest=$(cd "$PROJECT_ROOT" && cat setup.py "requirements/$extra"*.txt requirements/placeholders/*/*.{py,toml} | sha256sum)
  printf '%s\n' "$PROJECT_ROOT/.venv/.rl-agent-$extra-${digest:0:16}"
}

# Run a program that prints nothing; a line every ten seconds says what it does, and for how long.
# Usage: with_clock <what> <command…>
with_clock() {
  local what=$1 status=0 alive clock
  exec {alive}> >(
    elapsed_s=0
    while read -r -t 10 || (($? > 128)); do # ends at once when this script does, by a signal too
      say "setup: $what, $((elapsed_s += 10)) s so far"
    done
  )
  clock=$!
  "${@:2}" {alive}>&- || status=$?
  exec {alive}>&-
  wait "$clock" 2>/dev/null || true
  return "$status"
}

# Make or update .venv from the lock; does nothing if it is up to date.
# Usage: ensure_environment <extra>
ensure_environment() {
  local extra=$1 stamp python
  stamp=$(environment_stamp "$extra")
  [[ -f $stamp ]] && return 0
  python=$(find_python)
  say "setup: installing the $extra environment into .venv (about 3 GB on a CPU host, 12 GB with CUDA)"
  cd "$PROJECT_ROOT" || return
  [[ -x .venv/bin/python ]] || "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
  [[ $extra == gpu ]] || ensure_cpu_torch
  with_clock "installing $(grep -c == "requirements/$extra.txt") packages" \
    .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --require-hashes -r "requirements/$extra.txt"
  [[ $extra == gpu ]] || .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation \
    -r requirements/cpu-unhashed.txt # with the setuptools of the lock; torch is there already
  .venv/bin/uv pip install --python .venv/bin/python --quiet --no-deps --no-build-isolation \
    --config-settings editable_mode=compat -e . # a plain path: an import hook would cost every verb 20 ms
  say "setup: compiling Python files once, half a minute on two cores, so that servers start in half the time"
  with_clock "compiling Python files" \
    env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m compileall -q -j 0 -x "$NOT_COMPILED" .venv/lib >/dev/null || true
  rm -f .venv/.rl-agent-*
  touch "$stamp"
}

# Install the CPU build of torch that the lock names: from the configured indexes if they have it,
# else from PyTorch's own CPU index, which uv knows. Never the CUDA build.
# Usage: ensure_cpu_torch
ensure_cpu_torch() {
  local pinned
  pinned=$(grep '^torch==' requirements/cpu-unhashed.txt)
  with_clock "installing $pinned" \
    .venv/bin/python -m pip install --quiet --quiet --quiet --disable-pip-version-check --no-compile "$pinned" ||
    .venv/bin/uv pip install --python .venv/bin/python --torch-backend cpu "$pinned" ||
    refuse "no index has $pinned; set PIP_FIND_LINKS=<folder with its wheel>"
}
