#!/usr/bin/env bash
# TPU slices of a GKE cluster that xpk has made: a workload of xpk. launch/gke.sh needs no xpk.
#
#   launch/xpk.sh run --name=books --cluster=C --zone=ZONE --tpu-type=v5litepod-64 --image=IMAGE [flags] \
#       -- pretrain --config=bert_large --workdir=gs://BUCKET/runs/books
#   launch/xpk.sh delete --name=books --cluster=C --zone=ZONE
#
#   --project=P     (default: gcloud's)     --slices=N     (default 1)
#   --restarts=N    after crashes and preemptions together, which xpk counts alike (default 100)
#   --grace=S       seconds between the signal and the end of a pod (default 300)
#   --dry-run       prints the command and does nothing
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib.sh
source "$here/lib.sh"

name='' cluster='' zone='' project='' tpu_type='' image='' slices=1 restarts=100 grace=300
action=${1:-}
case $action in
  run | delete) shift ;;
  --help | -h) usage && exit 0 ;;
  *) die "first word $(displayed "$action"); allowed: run, delete (--help explains)" ;;
esac
read_options 'name= cluster= zone= project= tpu_type= image= slices= restarts= grace=' "$@"
needed name cluster zone
plain_name "$name"
whole 1 slices
whole 0 restarts grace
where=("--workload=$name" "--cluster=$cluster" "--zone=$zone")
[[ -z $project ]] || where+=("--project=$project")

if [[ $action == delete ]]; then
  tools xpk
  run xpk workload delete "${where[@]}"
  exit
fi
needed tpu_type image
needs_verb
needs_bucket
on_many_hosts
tools xpk
# The text goes into YAML, so it is one line; Kubernetes replaces $(NAME) in it and turns $$ into $; then bash reads it.
# With exec the signal reaches the run, not a shell around it.
line=$(displayed exec bert-jax "${words[@]}")
run xpk workload create "${where[@]}" "--tpu-type=$tpu_type" "--num-slices=$slices" "--docker-image=$image" \
  "--max-restarts=$restarts" "--restart-on-exit-codes=1,75,76" "--termination-grace-period-seconds=$grace" \
  "--command=${line//\$/\$\$}"
