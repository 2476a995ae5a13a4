"""Every launch script: a dry run, hostile values, bad input."""

import json
import shutil
import subprocess

import pytest

from tests.launch.stage import HOSTILE, ROOT, SHELL_TOOLS

SCRIPTS = sorted((ROOT / "launch").rglob("*.sh"))
FOR_PEOPLE = [path for path in SCRIPTS if path.name not in ("lib.sh", "supervise.sh", "job.sh")]
RUN = ["--", "pretrain", "--config=quickstart", "--workdir=gs://bucket/runs/x"]
SLICE = ["--name=books", "--zone=europe-west4-b"]
POD = [*SLICE, "--accelerator-type=v5litepod-16", "--image=registry.example/p/bert-jax:1"]
GKE = ["--name=books", "--image=i", "--accelerator=tpu-v5-lite-podslice", "--topology=4x4", "--chips-per-node=4"]
XPK = ["--name=books", "--cluster=c", "--zone=z", "--tpu-type=v5litepod-16", "--image=i"]
# Commands that end, and call nothing to learn what to do next.
COMMANDS = {
    "local": ["local.sh", *RUN],
    "local, two processes": ["local.sh", "--processes=2", "--port=21212", *RUN],
    "gpu_node": ["gpu_node.sh", "--gpus=0,1", *RUN],
    "gpu_node, container": ["gpu_node.sh", "--gpus=0,1", "--image=i", "--mount=/a folder", *RUN],
    "tpu_pod create": ["tpu_pod.sh", "create", *SLICE, "--accelerator-type=v6e-16", "--gcloud=--labels=a=b c"],
    "tpu_pod run": ["tpu_pod.sh", "run", *SLICE, "--image=i", "--docker=--env=A=b c", *RUN],
    "tpu_pod logs": ["tpu_pod.sh", "logs", *SLICE, "--project=p", "--worker=2"],
    "tpu_pod status": ["tpu_pod.sh", "status", *SLICE],
    "tpu_pod delete": ["tpu_pod.sh", "delete", *SLICE],
    "gke run": ["gke.sh", "run", *GKE, "--spot", *RUN],
    "gke resume": ["gke.sh", "resume", *GKE, "--context=a b", *RUN],
    "gke logs": ["gke.sh", "logs", "--name=books"],
    "gke status": ["gke.sh", "status", "--name=books"],
    "gke delete": ["gke.sh", "delete", "--name=books"],
    "xpk run": ["xpk.sh", "run", *XPK, *RUN],
    "xpk delete": ["xpk.sh", "delete", "--name=books", "--cluster=c", "--zone=z"],
}


def dry(words: list[str]) -> list[str]:
    place = words.index("--") if "--" in words else len(words)
    return [*words[:place], "--dry-run", *words[place:]]


def plain(calls: list[dict]) -> list[str]:
    return sorted(str((call["tool"], call["argv"], call["env"], call["stdin"])) for call in calls)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_dry_run_calls_nothing_and_prints_what_would_be_called(launch, words):
    """What it prints is read by a shell, and leads to the very calls of the run that is not dry."""
    hostile = [*words, *HOSTILE] if "--" in words else words
    launch.answers = {"gcloud": [["describe", [{"out": "ACTIVE\n"}]]]}
    printed = launch.script(*dry(hostile))
    assert printed.returncode == 0, printed.stderr
    assert launch.calls() == []
    assert launch.command("bash", "-ec", printed.stdout).returncode == 0, printed.stdout
    planned = launch.calls()
    done = launch.script(*hostile)
    assert done.returncode == 0, done.stderr
    assert planned
    assert plain(launch.calls()) == plain(planned)
    assert launch.untouched()


def test_a_dry_run_of_gke_prints_the_jobset(launch):
    printed = launch.script(*dry(COMMANDS["gke run"])).stdout
    command, _, rest = printed.partition("\n")
    assert command == "kubectl --namespace=default create --filename=- <<'END'"
    assert json.loads(rest.removesuffix("END\n")) == json.loads(
        launch.script("gke.sh", "manifest", *GKE, "--spot", *RUN).stdout
    )


def test_a_dry_run_needs_no_tool(launch):
    for tool in ("gcloud", "kubectl", "sbatch", "xpk", "bert-jax", "docker"):
        launch.remove(tool)
    for words in COMMANDS.values():
        assert launch.script(*dry(words)).returncode == 0, words


@pytest.mark.parametrize(
    ("words", "tool"),
    [(COMMANDS["tpu_pod run"], "gcloud"), (COMMANDS["gke run"], "kubectl"), (COMMANDS["xpk run"], "xpk")]
    + [(COMMANDS["local"], "bert-jax"), (COMMANDS["gpu_node, container"], "docker"), (["slurm.sh", *RUN], "sbatch")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_tool_is_one_line(launch, words, tool):
    launch.remove(tool)
    done = launch.script(*words)
    assert (done.returncode, launch.calls()) == (2, [])
    assert done.stderr == f"error: not on PATH: {tool}; install it, or see with --dry-run what would be done\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tpu_pod.sh", "create"], "missing --name=VALUE --zone=VALUE"),
        (["tpu_pod.sh", "run", *SLICE, *RUN], "missing --image=VALUE"),
        (["tpu_pod.sh", "create", *SLICE, "--accelerator-type=v99"], "missing --runtime-version=VALUE"),
        (["tpu_pod.sh", "destroy", *SLICE], "first word destroy; allowed: create, run, logs"),
        (["tpu_pod.sh"], "first word ''; allowed: create"),
        (["tpu_pod.sh", "run", *POD], "no command; write -- pretrain"),
        (["tpu_pod.sh", "run", *POD, "--", "--config=x"], "--config=x is no verb"),
        (["tpu_pod.sh", "run", *POD, "--", "pretrain", "--workdir=runs/x"], "--workdir=runs/x is lost"),
        (["tpu_pod.sh", "run", *POD, "--", "pretrain", "--workdir", "runs/x"], "--workdir=runs/x is lost"),
        (["tpu_pod.sh", "run", *POD, "--", "finetune"], "finetune without --workdir"),
        (["tpu_pod.sh", "run", *SLICE, "--image=-v", *RUN], "--image=-v begins with -"),
        (["tpu_pod.sh", "create", "--name=A;touch x", "--zone=z"], "--name='A;touch x': at most 40"),
        (["tpu_pod.sh", "create", "--name=a", "--zone=z", "--poll=soon", "--restarts=-1"], "--restarts=-1 --poll=soon"),
        (
            ["local.sh", "--proceses=2", "--PATH=/x", "y", *RUN],
            "unexpected --proceses=2 --PATH=/x y; allowed: --pro",
        ),
        (["local.sh", "--processes=0", *RUN], "--processes=0: whole numbers of at least 1"),
        (["local.sh", "--processes", *RUN], "unexpected --processes;"),
        (["local.sh", "--processes=a[$(touch x)]", *RUN], "whole numbers of at least 1"),
        (["local.sh", "--words=x", *RUN], "unexpected --words=x"),
        (["local.sh", "--processes=2", "--port=1", *RUN], "--port=1: whole numbers of at least 2"),
        (["local.sh", "--processes=2", "--port=65536", *RUN], "--port=65536: at most 65535"),
        (["gpu_node.sh", "--gpus=all", *RUN], "--gpus=all: numbers"),
        (["gpu_node.sh", "--image=--privileged", *RUN], "--image=--privileged begins with -"),
        (["gpu_node.sh", "--mount=/a", *RUN], "--mount is for --image=IMAGE"),
        (["gpu_node.sh", "--image=i", "--mount=a", *RUN], "an absolute path"),
        (["gpu_node.sh", "--image=i", "--mount=/a", "--", "pretrain", "--workdir=/ab/c"], "is in no mounted folder"),
        (["gpu_node.sh", "--image=i", "--mount=/a", "--", "pretrain", "--workdir", "/b"], "--workdir=/b is in no"),
        (["slurm/job.sh"], "launch/slurm.sh submits it"),
        (["slurm/job.sh", "--help", "3", "srun"], "launch/slurm.sh submits it"),
        (["slurm.sh", "--process=gpu", *RUN], "--process=gpu needs --gpus=N"),
        (["slurm.sh", "--process=core", *RUN], "--process=core: node or gpu"),
        (["slurm.sh", "--nodes=two", *RUN], "--nodes=two: whole numbers"),
        (["gke.sh", "run", "--name=a", *RUN], "missing --image=VALUE --accelerator=VALUE --topology=VALUE --chips-per"),
        (["gke.sh", "run", *GKE, "--topology=4by4", *RUN], "--topology=4by4 is not AxB"),
        (["gke.sh", "run", *GKE, "--topology=3x3", *RUN], "9 chips of --topology=3x3 are no nodes of 4"),
        (["gke.sh", "resume", *GKE, "--topology=3x3", *RUN], "9 chips of --topology=3x3 are no nodes of 4"),
        (["gke.sh", "run", *GKE, "--topology=3x3", "--dry-run", *RUN], "9 chips of --topology=3x3 are no nodes of 4"),
        (["gke.sh", "logs", "--name=a", "--namespace="], "missing --namespace=VALUE"),
        (["gke.sh", "run", *GKE, "--", "pretrain", "--workdir=/mnt/x"], "--workdir=/mnt/x is lost"),
        (["xpk.sh", "delete"], "missing --name=VALUE --cluster=VALUE --zone=VALUE"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_one_line_before_anything_is_called(launch, words, said):
    done = launch.script(*words)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert launch.calls() == []
    assert launch.untouched()


@pytest.mark.parametrize("path", FOR_PEOPLE, ids=lambda path: path.name)
def test_help_is_the_head_of_the_script(launch, path):
    done = launch.script(path.name, "--help")
    assert done.returncode == 0
    assert f"launch/{path.name}" in done.stdout
    assert "--dry-run" in done.stdout
    assert "set -euo" not in done.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_stops_at_the_first_error(path):
    text = path.read_text()
    if text.startswith("#!"):
        assert "\nset -euo pipefail\n" in text
    else:
        assert path.name in ("lib.sh", "supervise.sh")  # sourced by the others
    assert "eval " not in text


def test_shellcheck():
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", "--external-sources", *SCRIPTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_only_recorders_can_be_reached(launch):
    """The safety of these tests themselves."""
    assert not {"gcloud", "kubectl", "docker", "ssh"} & set(SHELL_TOOLS)
    launch.remove("gcloud")
    assert launch.command("bash", "-c", "command -v gcloud").returncode == 1
