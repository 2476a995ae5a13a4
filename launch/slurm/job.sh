#!/usr/bin/env bash
# The batch script of launch/slurm.sh, on the first node of an allocation: job.sh LAUNCH_FOLDER RESTARTS srun ... bert-jax ...
#
# SLURM runs a copy of this file, so the folder of lib.sh is given. What the exit code of a step leads to: README.md.
set -euo pipefail
if (($# < 3)) || [[ ! -f $1/lib.sh ]]; then
  echo "error: this is the script of a job; launch/slurm.sh submits it, and its --help explains" >&2
  exit 2
fi
# shellcheck source=launch/lib.sh
source "$1/lib.sh"
restarts=$2
shift 2

# sbatch --signal and scancel reach the step by themselves. A trap keeps this shell alive until the step has saved.
trap : TERM

while :; do
  code=0
  "$@" || code=$?
  start_again "$code" "$restarts" || exit "$code"
  [[ $(decision "$code") == retry ]] || break
done
# A job that was cancelled, or that SLURM queues again itself, is no longer RUNNING: leave it alone.
state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T || true)
[[ $state == RUNNING ]] || { told "job is ${state:-gone}: not queued again" && exit "$code"; }
scontrol requeue "$SLURM_JOB_ID" || exit "$code"
