"""Launchers that start bert-jax again do so as its exit code says."""

import os
import re
import signal
import subprocess
import time

import pytest

from tests.launch.stage import ROOT

ARGUMENTS = ["pretrain", "--config=quickstart", "--workdir=runs/x"]
RUN = ["--", *ARGUMENTS]
POD = ["--name=books", "--zone=z", "--accelerator-type=v5litepod-16", "--image=i", "--poll=0"]
BUCKET = ["--", "pretrain", "--workdir=gs://bucket/runs/x"]


def ends(*codes: int) -> dict:
    """Return answers with which bert-jax ends with these codes, one after the other."""
    return {"bert-jax": [["pretrain", [{"code": code} for code in codes]]]}


@pytest.mark.parametrize("script", ["local.sh", "gpu_node.sh"])
@pytest.mark.parametrize(
    ("codes", "starts", "final"),
    [
        ([0], 1, 0),
        ([2], 1, 2),
        ([130], 1, 130),
        ([75, 75, 75, 0], 4, 0),  # preemptions do not count
        ([1, 75, 139, 0], 4, 0),
        ([1], 3, 1),  # a crash is tried --restarts times
        ([76, 1, 2], 3, 2),
    ],
    ids=str,
)
def test_one_process(launch, script, codes, starts, final):
    launch.answers = ends(*codes)
    done = launch.script(script, "--restarts=2", *RUN)
    assert done.returncode == final, done.stderr
    assert launch.argvs("bert-jax") == [ARGUMENTS] * starts


def test_processes_get_their_place_and_a_new_port_each_time(launch):
    launch.answers = ends(75, 0)
    done = launch.script("local.sh", "--processes=3", *RUN)
    assert done.returncode == 0, done.stderr
    places = [call["env"] for call in launch.calls("bert-jax")]
    assert len(places) == 6
    for gang in (places[:3], places[3:]):
        assert {place["BERT_JAX_PROCESS_ID"] for place in gang} == {"0", "1", "2"}
        assert {place["BERT_JAX_NUM_PROCESSES"] for place in gang} == {"3"}
        assert {place["JAX_PLATFORMS"] for place in gang} == {"cpu"}
        assert len({place["BERT_JAX_COORDINATOR"] for place in gang}) == 1
    ports = {place["BERT_JAX_COORDINATOR"] for place in places}
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize(
    ("codes", "final", "starts"), [((0, 75), 0, 2), ((1, 75), 1, 1), ((75, 2), 2, 1), ((76, 1), 76, 1), ((0, 0), 0, 1)]
)
def test_the_gravest_code_of_a_gang_decides(launch, codes, final, starts):
    first, second = codes
    launch.answers = {"bert-jax": [["process=0", [{"code": first}, {}]], ["process=1", [{"code": second}, {}]]]}
    done = launch.script("local.sh", "--processes=2", "--restarts=0", *RUN)
    assert len(launch.calls("bert-jax")) == 2 * starts
    assert done.returncode == final or {final, done.returncode} == {1, 76}  # of two crashes either may end first


def test_one_process_that_ends_takes_a_frozen_one_with_it(launch):
    """The other neither ends nor hears SIGTERM: with the last of them, SIGKILL, it goes."""
    launch.answers = {"bert-jax": [["process=0", [{"code": 1}]], ["process=1", [{"sleep": 50, "term": None}]]]}
    began = time.monotonic()
    done = launch.script("local.sh", "--processes=2", "--grace=1", "--restarts=0", *RUN)
    assert done.returncode == 1  # the first to end says why
    assert time.monotonic() - began < 30
    assert "the others have 1 s" in done.stderr


@pytest.mark.parametrize(("number", "final"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_is_passed_on_and_nothing_is_started_again(launch, number, final):
    launch.answers = {"bert-jax": [["pretrain", [{"sleep": 50, "term": 75}]]]}
    launch.log.write_text("")
    with subprocess.Popen(
        [ROOT / "launch" / "local.sh", "--processes=2", *RUN],
        env=launch.env(),
        cwd=launch.folder,
        text=True,
    ) as process:
        for _ in range(200):
            if len(launch.calls()) == 2:
                break
            time.sleep(0.1)
        os.kill(process.pid, number)
        assert process.wait(timeout=30) == final
    assert len(launch.calls()) == 2


# SLURM


def job(launch, *codes, restarts=2, state="RUNNING\n") -> subprocess.CompletedProcess:
    launch.answers = {"srun": [["bert-jax", [{"code": code} for code in codes]]], "squeue": [["", [{"out": state}]]]}
    launch.environment = {"SLURM_JOB_ID": "77"}
    return launch.script(
        "slurm/job.sh", str(ROOT / "launch"), str(restarts), "srun", "--wait=60", "bert-jax", *ARGUMENTS
    )


@pytest.mark.parametrize(
    ("codes", "steps", "queued", "final"),
    [
        ([0], 1, False, 0),
        ([2], 1, False, 2),
        ([75], 1, True, 0),
        ([1, 139, 0], 3, False, 0),
        ([1], 3, False, 1),
        ([1, 75], 2, True, 0),
    ],
    ids=str,
)
def test_a_slurm_job(launch, codes, steps, queued, final):
    done = job(launch, *codes)
    assert done.returncode == final, done.stderr
    assert launch.argvs("srun") == [["--wait=60", "bert-jax", *ARGUMENTS]] * steps
    assert launch.argvs("scontrol") == ([["requeue", "77"]] if queued else [])


@pytest.mark.parametrize("state", ["COMPLETING\n", "CANCELLED\n", ""])
def test_a_job_that_was_cancelled_is_not_queued_again(launch, state):
    done = job(launch, 75, state=state)
    assert done.returncode == 75
    assert launch.argvs("scontrol") == []


STEP = ["srun", "--kill-on-bad-exit=0", "--wait=60", "--export=ALL"]


@pytest.mark.parametrize(
    ("flags", "tasks", "step"),
    [
        ([], 1, [*STEP, "bert-jax"]),
        (["--gpus=4"], 1, [*STEP, "--gpu-bind=none", "env", "JAX_LOCAL_DEVICE_IDS=0,1,2,3", "bert-jax"]),
        (["--gpus=4", "--process=gpu"], 4, [*STEP, "--gpu-bind=none", "bert-jax"]),
    ],
    ids=str,
)
def test_slurm_submits_a_process_a_node_or_a_gpu(launch, flags, tasks, step):
    done = launch.script("slurm.sh", "--nodes=2", "--time=1:00", "--sbatch=--partition=a b", *flags, *RUN)
    assert done.returncode == 0, done.stderr
    [argv] = launch.argvs("sbatch")
    script = argv.index(str(ROOT / "launch" / "slurm" / "job.sh"))
    options = set(argv[:script])
    assert {"--nodes=2", f"--ntasks-per-node={tasks}", "--requeue", "--signal=TERM@300"} <= options
    assert "--partition=a b" in options
    assert ("--gpus-per-node=4" in options) == bool(flags)
    words = ["pretrain", "--distributed=auto", *ARGUMENTS[1:]]
    assert argv[script + 1 :] == [str(ROOT / "launch"), "3", *step, *words]


def test_a_dry_run_of_slurm_prints_the_submission_and_the_step(launch):
    done = launch.script("slurm.sh", "--dry-run", *RUN)
    submission, step = done.stdout.splitlines()
    assert submission.startswith("sbatch ")
    assert submission.endswith(step)
    assert launch.calls() == []


# TPU pods


def label(*words: str) -> str:
    """Return the label of the container that runs these words."""
    text = "".join(f"{word}\0" for word in words)
    return subprocess.run(["cksum"], input=text, capture_output=True, text=True, check=True).stdout.split()[0]


WORDS = label("pretrain", "--restarts=10", "--distributed=auto", *BUCKET[2:])


def pod(*, slice_=("ACTIVE",), containers=("none",)) -> dict:
    """Return the answers of gcloud about the slice and about the containers, one after the other."""
    containers = [re.sub(r"(?m)(\w+ \d+)$", rf"\1 {WORDS}", text) for text in containers]
    absent = {"code": 1, "err": "ERROR: NOT_FOUND: Resource was not found"}
    states = [absent if state == "MISSING" else {"out": f"{state}\n"} for state in slice_]
    return {"gcloud": [["describe", states], ["docker inspect", [{"out": f"{text}\n"} for text in containers]]]}


def deeds(launch) -> list[str]:
    """Return the orders to gcloud, without the questions."""
    kinds = {"create": "create", "delete": "delete"}
    found = []
    for argv in launch.argvs("gcloud"):
        if "--detach" in argv[-1]:
            found.append("start")
        elif argv[3] in kinds:
            found.append(argv[3])
    return found


@pytest.mark.parametrize(
    ("states", "done"),
    [
        (["ACTIVE"], ["start"]),
        (["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], ["start"]),
        (["SUSPENDED", "WAITING_FOR_RESOURCES", "ACTIVE"], ["delete", "create", "start"]),
        (["FAILED", "ACTIVE"], ["delete", "create", "start"]),
    ],
    ids=str,
)
def test_resume_makes_what_is_missing(launch, states, done):
    launch.answers = pod(slice_=states)
    ended = launch.script("tpu_pod.sh", "resume", *POD, *BUCKET)
    assert ended.returncode == 0, ended.stderr
    assert deeds(launch) == done


def test_resume_asks_for_a_slice_that_is_not_there(launch):
    launch.answers = pod(slice_=["MISSING", "MISSING", "ACTIVE"])  # an absent one is looked at twice
    assert launch.script("tpu_pod.sh", "resume", *POD, *BUCKET).returncode == 0
    assert deeds(launch) == ["create", "start"]
    [create] = [argv for argv in launch.argvs("gcloud") if "create" in argv]
    assert "--spot" in create
    assert "--runtime-version=v2-alpha-tpuv5-lite" in create


def test_resume_does_nothing_where_gcloud_cannot_say(launch):
    launch.answers = {"gcloud": [["describe", [{"code": 1, "err": "ERROR: no credentials"}]]]}
    ended = launch.script("tpu_pod.sh", "resume", *POD, *BUCKET)
    assert ended.returncode == 2
    assert "no credentials" in ended.stderr
    assert deeds(launch) == []


def test_on_demand_is_not_spot(launch):
    launch.script("tpu_pod.sh", "create", "--name=a", "--zone=z", "--accelerator-type=v4-32", "--on-demand")
    [argv] = launch.argvs()
    assert "--spot" not in argv
    assert "--runtime-version=tpu-ubuntu2204-base" in argv


@pytest.mark.parametrize(
    ("containers", "done", "final"),
    [
        (["none", "running 0", "exited 0\nexited 0"], ["start"], 0),
        (["running 0\nrunning 0", "exited 0\nexited 0"], [], 0),
        (["exited 75\nexited 75", "running 0", "exited 0"], ["start"], 0),
        (["exited 2\nexited 2"], [], 2),
        (["exited 75\nexited 1"], [], 1),
        (["exited 0\nnone", "exited 0"], ["start"], 0),
    ],
    ids=str,
)
def test_watch_ends_with_the_run(launch, containers, done, final):
    launch.answers = pod(containers=containers)
    ended = launch.script("tpu_pod.sh", "watch", *POD, *BUCKET)
    assert ended.returncode == final, ended.stderr
    assert deeds(launch) == done


def test_watch_does_not_take_a_preflight_for_the_run(launch):
    """The preflight's container ended well, and ran other words than the run's."""
    launch.answers = pod(containers=[f"exited 0 {label('preflight')}", "running 0", "exited 0"])
    assert launch.script("tpu_pod.sh", "watch", *POD, *BUCKET).returncode == 0
    assert deeds(launch) == ["start"]
    [start] = [argv[-1] for argv in launch.argvs("gcloud") if "--detach" in argv[-1]]
    assert f" --label=words={WORDS} " in start


def test_watch_outlives_preemptions(launch):
    states = ["ACTIVE", "ACTIVE", "SUSPENDED", "PROVISIONING", "ACTIVE"]
    launch.answers = pod(slice_=states, containers=["none", "running 0", "none", "running 0", "exited 0"])
    ended = launch.script("tpu_pod.sh", "watch", *POD, *BUCKET)
    assert ended.returncode == 0, ended.stderr
    assert deeds(launch) == ["start", "delete", "create", "start"]


@pytest.mark.parametrize(
    ("answer", "said", "code"),
    [
        ({"out": "WAITING_FOR_RESOURCES\n"}, "WAITING_FOR_RESOURCES\n", 0),
        ({"code": 1, "err": "ERROR: NOT_FOUND: no such resource\n"}, "MISSING\n", 0),
        ({"code": 1, "err": "ERROR: not logged in\n"}, "UNKNOWN\n", 1),
    ],
)
def test_status_asks_no_worker_of_a_slice_that_is_not_there(launch, answer, said, code):
    launch.answers = {"gcloud": [["describe", [answer]]]}
    done = launch.script("tpu_pod.sh", "status", "--name=books", "--zone=z")
    assert (done.stdout, done.returncode) == (said, code)
    assert not [argv for argv in launch.argvs("gcloud") if "ssh" in argv]


def test_watch_gives_up_on_a_container_that_does_not_start(launch):
    launch.answers = pod()
    launch.answers["gcloud"].append(["docker", [{"code": 1, "err": "no such image"}]])
    ended = launch.script("tpu_pod.sh", "watch", *POD, *BUCKET)
    assert ended.returncode == 2
    assert deeds(launch) == ["start"] * 5
