# Reads flags of a command line that is handed on. Sourced; defines functions only.
# shellcheck shell=bash

# Whether a flag is among the words.
# Usage: has_flag <flag> <words…>
has_flag() {
  local flag=$1 word
  for word in "${@:2}"; do
    [[ $word != "$flag" && $word != "$flag="* ]] || return 0
  done
  return 1
}
