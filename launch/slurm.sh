#!/usr/bin/env bash
# A SLURM cluster: submits launch/slurm/job.sh, one process a node (or a GPU), which goes on after preemption, at the
# time limit and after a crash.
#
#   launch/slurm.sh --nodes=4 --gpus=8 --time=24:00:00 [flags] -- pretrain --config=bert_large --workdir=/shared/runs/large
#
#   --nodes=N       nodes (default 1)
#   --gpus=N        GPUs of each node (default 0: CPU)
#   --process=gpu   one process a GPU (default: node, one that uses all of its GPUs)
#   --cpus=N        cores of each process (default: the cluster's)
#   --time=T        limit of one piece; the job is queued again at its end (default: the partition's)
#   --notice=S      seconds before that limit at which the run is told to save and go (default 300)
#   --restarts=N    restarts within a piece after crashes (default 3)
#   --name=NAME     of the job and of its log NAME-JOBID.log (default bert-jax)
#   --sbatch=FLAG   any other flag of sbatch, such as --sbatch=--partition=long, as often as needed
#   --srun=FLAG     any other flag of srun, such as --srun=--container-image=IMAGE, as often as needed
#   --dry-run       prints the commands of this script and of the job, and submits nothing
#
# bert-jax must be on PATH on the nodes (or in the container), the working directory on a file system that all share.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib.sh
source "$here/lib.sh"

nodes=1 gpus=0 process=node cpus='' time='' notice=300 restarts=3 name=bert-jax sbatch=() srun=()
read_options 'nodes= gpus= process= cpus= time= notice= restarts= name= sbatch=* srun=*' "$@"
whole 1 nodes notice
whole 0 gpus restarts
[[ -z $cpus ]] || whole 1 cpus
plain_name "$name"
[[ $process == node || $process == gpu ]] || die "--process=$(displayed "$process"): node or gpu"
[[ $process == node || $gpus -gt 0 ]] || die "--process=gpu needs --gpus=N, the GPUs of each node"
needs_verb
on_many_hosts
tools sbatch

tasks=1
[[ $process == node ]] || tasks=$gpus
submit=(sbatch "--job-name=$name" "--nodes=$nodes" "--ntasks-per-node=$tasks" --requeue --open-mode=append
  "--output=$name-%j.log" "--signal=TERM@$notice" --export=ALL)
((gpus == 0)) || submit+=("--gpus-per-node=$gpus")
[[ -z $cpus ]] || submit+=("--cpus-per-task=$cpus")
[[ -z $time ]] || submit+=("--time=$time")

step=(srun --kill-on-bad-exit=0 --wait=60 --export=ALL)
# jax takes the GPU of a task's local number, so every task must see all of them; with one task it would take one only.
((gpus == 0)) || step+=(--gpu-bind=none)
step+=("${srun[@]}")
if [[ $process == node && gpus -gt 0 ]]; then
  local_ids=$(seq --separator=, 0 $((gpus - 1)))
  step+=(env "JAX_LOCAL_DEVICE_IDS=$local_ids")
fi
step+=(bert-jax "${words[@]}")

run "${submit[@]}" "${sbatch[@]}" "$here/slurm/job.sh" "$here" "$restarts" "${step[@]}"
[[ -z $dry_run ]] || run "${step[@]}"
