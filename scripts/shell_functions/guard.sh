#!/usr/bin/env bash
# Outlives run.sh by a moment: if its pipe closes without the word `done`, that shell was killed, and the
# guard ends the process groups it recorded and gives back the memory of its weights. Runs in a session of its
# own, where no Ctrl+C reaches it. It leaves all to the next shell once that has resumed the run here.
# Usage: guard.sh <groups-folder> <weights-folder>      (the pipe is stdin)
set -Eeuo pipefail

# shellcheck source=scripts/shell_functions/common_utils.sh
source "$(dirname "${BASH_SOURCE[0]}")/common_utils.sh"

# Whether the run still belongs to the shell of this guard.
# Usage: is_ours <groups-folder>
is_ours() {
  [[ $(<"$1.driver") == "$DRIVER" ]]
}

# End every recorded group; returns 1 if there was one.
# Usage: end_recorded <groups-folder>
end_recorded() {
  local record leader token found=0
  for record in "$1"/*; do
    [[ -f $record && $record != *.tmp ]] || continue
    is_ours "$1" || continue
    found=1
    read -r leader _ token <"$record"
    end_marked "$token" "$leader" 3 || continue # the record stays for the next start's report
    rm -f -- "$record"
  done
  return "$found"
}

main() {
  local word='' looks status
  trap '' INT TERM HUP
  DRIVER=$(<"$1.driver")
  read -r word || true
  [[ $word != 'done' ]] || return 0
  # A child that was just forked records itself a moment later: look until it stays quiet.
  for ((looks = 0; looks < 20; looks++)); do
    status=0
    end_recorded "$1" || status=$?
    if ((status == 0 && looks >= 5)); then break; fi
    sleep 0.1
  done
  if is_ours "$1"; then rm -rf -- "$2"; fi
}

main "$@"
