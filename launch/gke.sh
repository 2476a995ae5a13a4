#!/usr/bin/env bash
# TPU slices of a GKE cluster, as a JobSet (0.10 or newer must be installed in the cluster).
#
#   launch/gke.sh run --name=books --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=4x4 --chips-per-node=4 \
#       [flags] -- pretrain --config=bert_large --workdir=gs://BUCKET/runs/books
#   launch/gke.sh logs | status | delete --name=books
#
#   run        creates the JobSet; preemptions and crashes restart all of it
#   resume     the same, in place of one that has ended
#   manifest   prints it as JSON
#   logs       follows process 0 (--worker=N another, of slice 0)
#   status     the JobSet and its pods
#   delete     the JobSet; buckets stay
#
#   --accelerator=LABEL --topology=AxB --chips-per-node=N   of the node pools, as GKE labels them
#   --slices=N             node pools that work together (default 1)
#   --spot                 only on spot nodes       --privileged   as root, where a cluster gives TPUs in no other way
#   --namespace=NS         (default: default)       --context=C   of kubectl (default: the current one)
#   --service-account=A    of Kubernetes; the bucket is open to the account of the nodes, whose network the pods use
#   --restarts=N           after crashes (default 10); after preemptions always
#   --grace=S              seconds between the signal and the end of a pod (default 300; a spot node gives fewer)
#   --dry-run              prints the commands, with the JobSet, and does nothing
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib.sh
source "$here/lib.sh"

name='' image='' accelerator='' topology='' chips_per_node='' slices=1 spot='' privileged='' namespace=default context=''
service_account='' restarts=10 grace=300 worker=0
known='name= image= accelerator= topology= chips_per_node= slices= namespace= context= service_account= restarts= grace='
action=${1:-}
case $action in
  run | resume | manifest | logs | status | delete) shift ;;
  --help | -h) usage && exit 0 ;;
  *) die "first word $(displayed "$action"); allowed: run, resume, manifest, logs, status, delete (--help explains)" ;;
esac
read_options "$known worker= spot privileged" "$@"
needed name namespace
plain_name "$name"
whole 0 worker restarts grace
whole 1 slices
kubectl=(kubectl)
[[ -z $context ]] || kubectl+=("--context=$context")
kubectl+=("--namespace=$namespace")

# describe_jobset: sets `generator`, the command that prints it, and `manifest`, what it prints. Both before anything is
# deleted or created.
describe_jobset() {
  needed image accelerator topology chips_per_node
  whole 1 chips_per_node
  needs_verb
  needs_bucket
  on_many_hosts
  generator=(python3 "$here/gke/jobset.py" "--name=$name" "--namespace=$namespace" "--image=$image"
    "--accelerator=$accelerator" "--topology=$topology" "--chips-per-node=$chips_per_node" "--slices=$slices"
    "--restarts=$restarts" "--grace=$grace" "--service-account=$service_account")
  [[ -z $spot ]] || generator+=(--spot)
  [[ -z $privileged ]] || generator+=(--privileged)
  generator+=(-- "${words[@]}")
  command -v python3 >/dev/null || die "not on PATH: python3; install it"
  manifest=$("${generator[@]}")
}

create() {
  if [[ -n $dry_run ]]; then
    printf "%s <<'END'\n%s\nEND\n" "$(displayed "${kubectl[@]}" create --filename=-)" "$manifest"
    return
  fi
  "${kubectl[@]}" create --filename=- <<<"$manifest"
}

case $action in
  run | resume | manifest) describe_jobset ;;
esac
[[ $action == manifest ]] || tools kubectl
case $action in
  run) create ;;
  resume)
    run "${kubectl[@]}" delete jobset "$name" --ignore-not-found --wait
    create
    ;;
  manifest) run "${generator[@]}" ;;
  logs)
    pods="jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=$worker"
    run "${kubectl[@]}" logs --follow --tail=200 "--selector=$pods"
    ;;
  status)
    run "${kubectl[@]}" get jobset "$name"
    run "${kubectl[@]}" get pods "--selector=jobset.sigs.k8s.io/jobset-name=$name" --output=wide
    ;;
  delete) run "${kubectl[@]}" delete jobset "$name" ;;
esac
