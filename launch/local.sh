#!/usr/bin/env bash
# One machine: one process, or several on CPU cores to try a multi-process run without a cluster.
#
#   launch/local.sh [flags] -- pretrain --config=quickstart --workdir=runs/tried
#
#   --processes=N   processes that belong together (default 1); more than one run on CPU, unless JAX_PLATFORMS is set
#   --restarts=N    how often all are started again after a crash (default 3); after a preemption always
#   --grace=S       when one process ends badly, seconds that the others have to end too (default 60)
#   --port=N        of the coordinator, which takes N-1 too (default: free ones, others for every attempt)
#   --dry-run       prints the commands and runs nothing
#
# It exits with the exit code of bert-jax; launch/README.md says what each code means.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib.sh
source "$here/lib.sh"
# shellcheck source=launch/supervise.sh
source "$here/supervise.sh"

processes=1 restarts=3 grace=60 port=''
read_options 'processes= restarts= grace= port=' "$@"
whole 1 processes
whole 0 restarts grace
[[ -z $port ]] || whole 2 port
((port <= 65535)) || die "--port=$port: at most 65535"
needs_verb
tools bert-jax

free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port() { # below the range that the system hands out by itself
  local tried
  for _ in {1..50}; do
    tried=$((20001 + RANDOM % 12000))
    if free "$tried"; then echo "$tried" && return; fi
  done
  die "no free port between 20000 and 32000; give one with --port=N"
}

# A new port for every attempt: a process that outlived the last one must not meet the next.
choose_port() { coordinator_port=${port:-$(free_port)}; }

one_process() { # I
  local command=(bert-jax "${words[@]}")
  if ((processes > 1)); then
    command=(env "JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}" "BERT_JAX_COORDINATOR=127.0.0.1:$coordinator_port"
      "BERT_JAX_NUM_PROCESSES=$processes" "BERT_JAX_PROCESS_ID=$1" "${command[@]}")
  fi
  [[ -z $dry_run ]] || { run "${command[@]}" && return; }
  exec "${command[@]}"
}

if [[ -n $dry_run ]]; then
  choose_port
  for ((i = 0; i < processes; i++)); do one_process "$i"; done
  exit
fi
keep_running "$processes" "$restarts" "$grace" one_process choose_port
