#!/usr/bin/env bash
# The batch script of launch/slurm.sh, on the first node of an allocation: job.sh LAUNCH_FOLDER RESTARTS srun ... bert-jax ...
#
# SLURM runs a copy of this file, so the folder of lib.sh is given. What the exit code of a step leads to: README.md.
set -euo pipefail
# shellcheck source=launch/lib.sh
source "$1/lib.sh"
restarts=$2
shift 2

# sbatch --signal and scancel reach the step by themselves. A trap keeps this shell alive until the step has saved.
trap : TERM

crashes=0
while :; do
  code=0
  "$@" || code=$?
  case $(decision "$code") in
    finish) exit 0 ;;
    stop) told "exit code $code: not started again" && exit "$code" ;;
    restart)
      # A job that was cancelled, or that SLURM queues again itself, is no longer RUNNING: leave it alone.
      state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T || true)
      [[ $state == RUNNING ]] || { told "preempted and saved, job is ${state:-gone}" && exit "$code"; }
      told "preempted and saved: queued again"
      scontrol requeue "$SLURM_JOB_ID" || exit "$code"
      exit 0
      ;;
    retry)
      crashes=$((crashes + 1))
      ((crashes <= restarts)) || { told "exit code $code after $restarts restarts: given up" && exit "$code"; }
      told "exit code $code: restart $crashes of $restarts"
      ;;
  esac
done
