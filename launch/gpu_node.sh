#!/usr/bin/env bash
# One node with GPUs: one process that uses all of them, in this environment or in a container.
#
#   launch/gpu_node.sh [flags] -- pretrain --config=bert_base --workdir=runs/base
#
#   --gpus=0,1      which GPUs (default: all)
#   --restarts=N    how often it is started again after a crash (default 3); after a preemption always
#   --image=IMAGE   run in this image (launch/Dockerfile.gpu) instead of the bert-jax on PATH
#   --mount=FOLDER  with --image: a folder of this machine, at the same path inside, as often as needed; one of them
#                   has the working directory, unless that is a bucket
#   --dry-run       prints the command and runs nothing
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib.sh
source "$here/lib.sh"
# shellcheck source=launch/supervise.sh
source "$here/supervise.sh"

gpus='' restarts=3 image='' mount=()
read_options 'gpus= restarts= image= mount=*' "$@"
whole 0 restarts
[[ -z $gpus || $gpus =~ ^[0-9]+(,[0-9]+)*$ ]] || die "--gpus=$(displayed "$gpus"): numbers with commas between are needed"
((${#mount[@]} == 0)) || [[ -n $image ]] || die "--mount is for --image=IMAGE; without a container leave it out"
for folder in "${mount[@]}"; do
  [[ $folder == /* && $folder != *[:,]* ]] || die "--mount=$(displayed "$folder"): an absolute path without : and , is needed"
done
no_flag image
needs_verb

# What a container writes outside its mounts is gone with it.
workdir_is_kept() {
  local workdir folder
  find_workdir || return 0
  [[ $workdir != *://* ]] || return 0
  for folder in "${mount[@]}"; do [[ $workdir/ != "${folder%/}/"* ]] || return 0; done
  die "--workdir=$(displayed "$workdir") is in no mounted folder; give an absolute path and --mount=FOLDER above it, or a bucket"
}

if [[ -n $image ]]; then
  tools docker
  workdir_is_kept
  command=(docker run --rm --init "--user=$(id -u):$(id -g)" --env=HOME=/tmp --shm-size=8g --ulimit=memlock=-1)
  if [[ -z $gpus ]]; then command+=(--gpus=all); else command+=("--gpus=\"device=$gpus\""); fi # docker reads it as CSV
  for folder in "${mount[@]}"; do command+=("--volume=$folder:$folder"); done
  command+=("$image" "${words[@]}")
else
  tools bert-jax
  command=(bert-jax "${words[@]}")
  [[ -z $gpus ]] || command=(env "CUDA_VISIBLE_DEVICES=$gpus" "${command[@]}")
fi

one_process() { exec "${command[@]}"; }

if [[ -n $dry_run ]]; then
  run "${command[@]}"
  exit
fi
keep_running 1 "$restarts" 60 one_process
