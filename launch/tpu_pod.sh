#!/usr/bin/env bash
# A slice of Cloud TPU VMs by queued resources, spot unless told otherwise; the run is a container on every worker.
#
#   launch/tpu_pod.sh create --name=books --zone=ZONE --accelerator-type=v5litepod-64 [flags]
#   launch/tpu_pod.sh run    --name=books --zone=ZONE --image=IMAGE -- pretrain --config=bert_large --workdir=gs://...
#   launch/tpu_pod.sh logs | status | delete --name=books --zone=ZONE
#   launch/tpu_pod.sh resume --name=... (the flags of create and run) -- pretrain ...
#   launch/tpu_pod.sh watch  (the same)
#
#   create  asks for the slice; it comes when there is room
#   run     starts the container on all workers, in place of one that is there, which may save first
#   logs    follows what process 0 prints (--worker=N another)
#   status  the state of the slice, and of the container on every worker
#   resume  whatever is missing: a slice that was preempted is deleted and asked for again, waited for, and the run
#           started on it; the run itself goes on from its last checkpoint
#   watch   until the run is finished: after every preemption, resume; a run that is there goes on
#   delete  the slice and what stands on its disks; buckets stay
#
#   --project=P            (default: gcloud's)     --runtime-version=V    the VM's software (default: by its generation)
#   --on-demand            not spot                --service-account=A    what the VMs may do
#   --gcloud=FLAG          another flag of `queued-resources create`, such as --gcloud=--internal-ips, as often as needed
#   --docker=FLAG          another flag of `docker run`, such as --docker=--user=0, as often as needed
#   --restarts=N           restarts on the workers after crashes, of pretrain (default 10)
#   --poll=S               seconds between looks, while waiting (default 60)
#   --dry-run              prints the commands and does nothing
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib.sh
source "$here/lib.sh"

name='' zone='' project='' accelerator_type='' runtime_version='' service_account='' image=''
on_demand='' restarts=10 poll=60 worker=0 gcloud=() docker=()
known='name= zone= project= accelerator_type= runtime_version= service_account= image= restarts= poll= worker='
action=${1:-}
case $action in
  create | run | logs | status | resume | watch | delete) shift ;;
  --help | -h) usage && exit 0 ;;
  *) die "first word $(displayed "$action"); allowed: create, run, logs, status, resume, watch, delete (--help explains)" ;;
esac
read_options "$known gcloud=* docker=* on_demand" "$@"
needed name zone
plain_name "$name"
whole 0 restarts poll worker
place=("--zone=$zone")
[[ -z $project ]] || place+=("--project=$project")

# The names are from the page "TPU software versions" of Cloud TPU.
set_runtime_version() {
  case $accelerator_type in
    *) [[ -z $runtime_version ]] || return 0 ;;&
    v4-*) runtime_version=tpu-ubuntu2204-base ;;
    v5litepod-*) runtime_version=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime_version=v2-alpha-tpuv5 ;;
    v6e-*) runtime_version=v2-alpha-tpuv6e ;;
    *) needed runtime_version ;;
  esac
}

create() {
  local command=(gcloud compute tpus queued-resources create "$name" "--node-id=$name" "${place[@]}"
    "--accelerator-type=$accelerator_type" "--runtime-version=$runtime_version")
  [[ -n $on_demand ]] || command+=(--spot)
  [[ -z $service_account ]] || # its roles alone say what it may do
    command+=("--service-account=$service_account" --scopes=https://www.googleapis.com/auth/cloud-platform)
  run "${command[@]}" "${gcloud[@]}"
}

on_workers() { # WHICH COMMAND: a line for the shell of the workers
  run gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" "--worker=$1" --quiet "--command=$2"
}

# The label tells the containers of two commands apart, such as a preflight and a run.
words_id() { printf '%s\0' "${words[@]}" | cksum | cut -d ' ' -f 1; }

# gcloud may send the line twice, so it may be run twice. The docker of root needs the credentials of this user.
start() {
  local flags=(--detach --init --name=bert-jax --privileged --network=host --stop-timeout=300 --ulimit=memlock=-1
    --log-opt=max-size=100m "--label=words=$(words_id)" "${docker[@]}")
  local quiet='>/dev/null 2>&1' line
  line="gcloud auth configure-docker $(posix_quoted "${image%%/*}") --quiet $quiet; "
  line+="sudo docker stop --time=300 bert-jax $quiet; sudo docker rm --force bert-jax $quiet; "
  line+="sudo env PATH=\"\$PATH\" docker --config=\"\$HOME/.docker\" run "
  line+=$(posix_quoted "${flags[@]}" "$image" "${words[@]}")
  on_workers all "$line"
}

remove() { run gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet; }

look=(gcloud compute tpus queued-resources describe "$name" "${place[@]}" '--format=value(state.state)')

slice_state() { # what gcloud calls it, MISSING where there is none, UNKNOWN where gcloud cannot tell
  local said
  "${look[@]}" 2>/dev/null && return
  said=$("${look[@]}" 2>&1) || true
  if [[ ${said,,} == *not_found* || ${said,,} == *"not found"* ]]; then
    echo MISSING
  else
    echo "${said##*$'\n'}" >&2
    echo UNKNOWN
  fi
}

# The exit code of the command's container on every worker, or "running", or "missing" where there is none or another.
# Nothing if a worker does not answer.
container_states() {
  local line='sudo docker inspect --format="{{.State.Status}} {{.State.ExitCode}} {{.Config.Labels.words}}" bert-jax' id
  id=$(words_id)
  gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker=all --quiet "--command=$line 2>/dev/null || echo none" \
    2>/dev/null | sed -n -e "s/^exited \([0-9]*\) $id\$/\1/p" -e t -e "s/^[a-z]* [0-9]* $id\$/running/p" -e t -e 's/^..*/missing/p'
}

# have_slice: returns when the slice is there. One that was preempted or failed is asked for again. An answer that gcloud
# cannot give ends us at the first question only: later the network may come back.
have_slice() {
  local state
  while :; do
    state=$(slice_state)
    [[ $state == "$seen" ]] || told "slice $name: $state"
    [[ $state != UNKNOWN || -n $seen ]] || die "gcloud cannot say how $name stands; see its message above"
    seen=$state
    case $state in
      ACTIVE) return ;;
      MISSING) create ;;
      SUSPENDED | FAILED) remove && create ;;
    esac
    sleep "$poll"
  done
}
seen=''

# status: a slice that is not there yet has no workers to ask.
status() {
  local state
  if [[ -n $dry_run ]]; then
    run "${look[@]}"
  else
    state=$(slice_state)
    echo "$state"
    [[ $state != UNKNOWN ]] || return 1
    [[ $state == ACTIVE ]] || return 0
  fi
  on_workers all 'hostname; sudo docker ps --all --filter=name=bert-jax --format="{{.Status}}"'
}

resume() {
  have_slice
  start
}

planned_resume() { # what a dry run can know of it
  echo "# if the slice was preempted or failed:"
  remove
  echo "# if it is not there, or no more:"
  create
  echo "# when its state is ACTIVE:"
  start
}

watch() {
  local states code failures=0
  while :; do
    have_slice
    states=$(container_states) || states=''
    if [[ -z $states || $states == *running* ]]; then # a worker that does not answer may be about to go
      sleep "$poll"
      continue
    fi
    if [[ $states != *missing* ]]; then
      # shellcheck disable=SC2086 # one word a worker
      code=$(worst $states)
      case $(decision "$code") in
        finish) told "finished; what is left to do: ${0##*/} delete --name=$name --zone=$zone" && return ;;
        restart) told "preempted and saved: started again" ;;
        *) told "exit code $code: not started again; see ${0##*/} logs" && return "$code" ;; # the workers have retried
      esac
    fi
    if start; then failures=0; else failures=$((failures + 1)); fi
    ((failures < 5)) || die "the container did not start in 5 tries; see the messages above"
    sleep "$poll"
  done
}

prepare_run() {
  needed image
  no_flag image
  needs_verb
  needs_bucket
  on_many_hosts
  [[ ${words[0]} != pretrain ]] || add_flag "--restarts=$restarts"
}

case $action in
  create)
    needed accelerator_type
    set_runtime_version
    ;;
  run) prepare_run ;;
  resume | watch)
    needed accelerator_type image
    set_runtime_version
    prepare_run
    ;;
esac
tools gcloud
case $action in
  create) create ;;
  run) start ;;
  logs) on_workers "$worker" 'sudo docker logs --follow --tail=200 bert-jax' ;;
  status) status ;;
  resume | watch) if [[ -n $dry_run ]]; then planned_resume; else "$action"; fi ;;
  delete) remove ;;
esac
