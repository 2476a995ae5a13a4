# shellcheck shell=bash
# What the launch scripts share. Sourced, never run.
#
# Every command is an array of words from the command line to the end; none is put together as text, but for a remote
# shell, whose words `posix_quoted` quotes one by one.

if ((BASH_VERSINFO[0] < 4 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] < 4))); then
  echo "error: bash $BASH_VERSION is too old; install bash 4.4 or newer and put it first on PATH" >&2
  exit 2
fi

dry_run=''
words=() # what follows --: a verb of bert-jax and its flags

die() { # MESSAGE: one line, and the exit code of bad input
  echo "error: $*" >&2
  exit 2
}

told() { echo "$(date -u +%H:%M:%S) ${0##*/}: $*" >&2; }

# help: the comment at the head of the script.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# read_options 'name= tags=* spot' "$@": --name=VALUE sets the variable `name`, --tags=VALUE appends to the array `tags`,
# --spot sets `spot` to yes; `-` in a flag is `_` in its variable. What follows -- becomes the array `words`. Only names
# that are listed are ever set. (Our own variables begin with _, as no flag does.)
read_options() {
  local _known=" $1 dry_run " _flag _name _unknown=()
  shift
  while (($#)); do
    _flag=$1
    shift
    _name=${_flag%%=*}
    _name=${_name#--}
    _name=${_name//-/_}
    case $_flag in
      --) words=("$@") && break ;;
      --help | -h) usage && exit 0 ;;
    esac
    if [[ $_flag != --[a-z]* || $_name == *[!a-z_]* ]]; then
      _unknown+=("$_flag")
    elif [[ $_flag == *=* && $_known == *" $_name=* "* ]]; then
      declare -n _list=$_name
      _list+=("${_flag#*=}")
      unset -n _list
    elif [[ $_flag == *=* && $_known == *" $_name= "* ]]; then
      printf -v "$_name" %s "${_flag#*=}"
    elif [[ $_flag != *=* && $_known == *" $_name "* ]]; then
      printf -v "$_name" yes
    else
      _unknown+=("$_flag")
    fi
  done
  ((${#_unknown[@]} == 0)) || unexpected "${_known//_/-}" "${_unknown[@]}"
}

unexpected() { # ALLOWED FLAG...
  local name list=()
  for name in ${1//\*/}; do list+=("--${name/%=/=VALUE}"); done
  shift
  die "unexpected $(displayed "$@"); allowed: ${list[*]}, and after -- a verb of bert-jax with its flags"
}

# needed name zone: both have a value, or one error that names each that has none.
needed() {
  local _name _missing=()
  for _name; do [[ -n ${!_name} ]] || _missing+=("--${_name//_/-}=VALUE"); done
  ((${#_missing[@]} == 0)) || die "missing ${_missing[*]}; --help says what each is"
}

# whole 1 restarts processes: each is a whole number of at least 1.
whole() {
  local _least=$1 _name _wrong=()
  shift
  for _name; do
    if ! [[ ${!_name} =~ ^(0|[1-9][0-9]{0,8})$ ]] || ((${!_name} < _least)); then
      _wrong+=("--${_name//_/-}=${!_name}")
    fi
  done
  ((${#_wrong[@]} == 0)) || die "$(displayed "${_wrong[@]}"): whole numbers of at least $_least are needed"
}

# A resource's name goes into other names, so it is kept to what all of them take.
plain_name() {
  [[ $1 =~ ^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
    die "--name=$(displayed "$1"): at most 40 of a-z, 0-9 and -, a letter first and no - last"
}

# tools gcloud kubectl: all are on PATH. A dry run needs none.
tools() {
  local tool missing=()
  [[ -z $dry_run ]] || return 0
  for tool; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  ((${#missing[@]} == 0)) || die "not on PATH: ${missing[*]}; install it, or see with --dry-run what would be done"
}

# needs_verb: something to run follows --.
needs_verb() {
  ((${#words[@]})) || die "no command; write -- pretrain --config=RECIPE --workdir=DIR after the flags"
  [[ ${words[0]} =~ ^[a-z][a-z-]*$ ]] ||
    die "$(displayed "${words[0]}") is no verb of bert-jax; write -- pretrain --config=RECIPE --workdir=DIR after the flags"
}

# find_workdir: sets `workdir` to the workdir in `words`, written --workdir=DIR or --workdir DIR. Returns 1 if there is none.
find_workdir() {
  local i found=1
  for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
      --workdir=*) workdir=${words[i]#*=} found=0 ;;
      --workdir) workdir=${words[i + 1]-} found=0 ;;
    esac
  done
  return "$found"
}

# needs_bucket: machines that may go at any time keep nothing, so the working directory is in a bucket.
needs_bucket() {
  local workdir=''
  if find_workdir; then
    [[ $workdir == gs://* ]] ||
      die "--workdir=$(displayed "$workdir") is lost with the machine; give a bucket: --workdir=gs://BUCKET/FOLDER"
  elif runs_on_all; then
    die "${words[0]} without --workdir; give it a bucket: --workdir=gs://BUCKET/FOLDER"
  fi
}

# no_flag image: its value goes before others on a command line, where a leading - would make it a flag.
no_flag() { [[ ${!1} != -* ]] || die "--$1=$(displayed "${!1}") begins with -, as no $1 does"; }

# has_flag restarts: whether `words` have --restarts or --restarts=...
has_flag() {
  local word
  for word in "${words[@]}"; do [[ $word != "--$1" && $word != "--$1="* ]] || return 0; done
  return 1
}

# add_flag --distributed=auto: right after the verb, unless the words say it themselves.
add_flag() {
  local name=${1#--}
  has_flag "${name%%=*}" || words=("${words[0]}" "$1" "${words[@]:1}")
}

# runs_on_all: whether the verb is one of those that several processes do together.
runs_on_all() { [[ ${words[0]} == pretrain || ${words[0]} == finetune || ${words[0]} == preflight ]]; }

# on_many_hosts: the processes find each other by what the cluster tells jax.
on_many_hosts() {
  ! runs_on_all || has_flag coordinator || add_flag --distributed=auto
}

posix_quoted() { # words for any POSIX shell: as they are if plain, else between single quotes
  local word text='' quote="'\\''"
  for word; do
    if [[ -z $word || $word == *[!A-Za-z0-9_./:=,@%+-]* ]]; then
      word=${word//\'/"$quote"}
      word="'$word'"
    fi
    text+="$word "
  done
  printf '%s' "${text% }"
}

displayed() { # words for a person and for bash, on one line
  local word text=''
  for word; do
    if [[ $word == *[[:cntrl:]]* ]]; then printf -v word %q "$word"; else word=$(posix_quoted "$word"); fi
    text+="$word "
  done
  printf '%s' "${text% }"
}

run() { # the command, or in a dry run its line
  if [[ -n $dry_run ]]; then
    displayed "$@"
    echo
  else
    "$@"
  fi
}

# decision CODE: what the exit code of bert-jax asks for.
#   finish   0
#   stop     2 bad input, 130 interrupted: the same command would end the same way
#   restart  75 preempted and saved: at once, and as often as it happens
#   retry    anything else, a crash: a limited number of times
decision() {
  case $1 in
    0) echo finish ;;
    2 | 130) echo stop ;;
    75) echo restart ;;
    *) echo retry ;;
  esac
}

# start_again CODE LIMIT: whether the command is started again, at most LIMIT times after crashes; tells why.
crashes=0
start_again() {
  case $(decision "$1") in
    finish) return 1 ;;
    stop) told "exit code $1: not started again" && return 1 ;;
    restart) told "preempted and saved" ;;
    retry)
      crashes=$((crashes + 1))
      ((crashes <= $2)) || { told "exit code $1 after $2 restarts: given up" && return 1; }
      told "exit code $1: restart $crashes of $2"
      ;;
  esac
}

# worst CODE...: the one code of processes that belong together. Bad input first, then a crash, then a preemption.
worst() {
  local code found=0
  for code; do
    case $code in
      2 | 130) echo "$code" && return ;;
      0) ;;
      75) ((found)) || found=75 ;;
      *) [[ $found != 0 && $found != 75 ]] || found=$code ;;
    esac
  done
  echo "$found"
}
