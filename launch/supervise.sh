# shellcheck shell=bash
# Keeps processes of this machine that belong together running. Sourced after lib.sh.

pids=()
leaving='' # the signal by which we ourselves were told to go: nothing is restarted then

# keep_running COUNT LIMIT GRACE COMMAND [BEFORE]: starts COUNT processes, `COMMAND I` each in a subshell that it replaces
# with exec. When one ends badly the others have GRACE seconds. All are started again as `start_again` says; BEFORE is
# called before each attempt. Returns the code of the last one, 130 after Ctrl-C.
keep_running() {
  local count=$1 limit=$2 grace=$3 _start=$4 before=${5:-:} code=0
  trap 'leaving=TERM; signal_all TERM' TERM HUP USR1
  trap interrupted INT
  while :; do
    "$before"
    run_together "$count" "$grace" "$_start"
    [[ $leaving != INT || $code == 0 || $code == 2 ]] || return 130
    [[ -z $leaving ]] || return "$code"
    start_again "$code" "$limit" || return "$code"
  done
}

# interrupted: Ctrl-C, which the processes in the background of this script do not hear. A second one ends them at once.
interrupted() {
  if [[ $leaving == INT ]]; then signal_all KILL; else signal_all TERM; fi
  leaving=INT
}

signal_all() {
  local pid
  for pid in "${pids[@]}"; do kill "-$1" "$pid" 2>/dev/null || true; done
}

# run_together COUNT GRACE COMMAND: sets `code` of keep_running when all have ended.
run_together() {
  local count=$1 grace=$2 _start=$3 i pid status deadline='' left codes=()
  pids=()
  for ((i = 0; i < count; i++)); do
    "$_start" "$i" &
    pids+=("$!")
  done
  while ((${#pids[@]})); do
    left=()
    for pid in "${pids[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then
        left+=("$pid")
      else
        status=0
        wait "$pid" || status=$?
        codes+=("$status")
        if ((status && ${#pids[@]} > 1)) && [[ -z $deadline ]]; then
          deadline=$((SECONDS + grace))
          told "a process ended with exit code $status: the others have $grace s"
        fi
      fi
    done
    pids=("${left[@]}")
    [[ -z $deadline || ${#pids[@]} -eq 0 ]] || reap
    ((${#pids[@]} == 0)) || sleep 0.1
  done
  code=$(worst "${codes[@]}")
}

# reap: past the deadline a process is told to go, and 5 s later made to: a frozen one hears no other signal.
reap() {
  ((SECONDS < deadline + 5)) || signal_all KILL
  ((SECONDS < deadline)) || signal_all TERM
}
