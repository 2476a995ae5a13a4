"""Hostile values on the machines of a cloud: the recorded commands are run by the shells that would run them there."""

import json
import re
import subprocess

import pytest

from tests.launch.stage import HOSTILE, ROOT

RUN = ["--", "pretrain", "--workdir=gs://bucket/runs/x", *HOSTILE]
ARRIVED = ["pretrain", "--restarts=10", "--distributed=auto", "--workdir=gs://bucket/runs/x", *HOSTILE]
IMAGE = "registry.example/p/bert jax;touch x$(touch y):1"


def by_kubernetes(text: str) -> str:
    """Return ``args`` as a kubelet gives them to a container that has these variables."""
    variables = {"HOME": "/replaced", "JOB": "7"}

    def replaced(match: re.Match) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_worker_of_a_pod_gets_the_words(launch, shell):
    flags = ["--name=books", "--zone=z", f"--image={IMAGE}", "--docker=--env=A=$(touch z) 'b'"]
    done = launch.script("tpu_pod.sh", "run", *flags, *RUN)
    assert done.returncode == 0, done.stderr
    [argv] = launch.argvs("gcloud")
    assert argv[:7] == ["compute", "tpus", "tpu-vm", "ssh", "books", "--zone=z", "--worker=all"]
    [line] = [word.removeprefix("--command=") for word in argv if word.startswith("--command=")]
    # gcloud splits it at blanks, and ssh joins it again; then the login shell of the worker reads it.
    line = " ".join(line.split(" "))
    launch.log.write_text("")
    assert launch.command(shell, "-c", line).returncode == 0
    stop, remove, docker = launch.argvs("docker")
    assert stop == ["stop", "--time=300", "bert-jax"]
    assert remove == ["rm", "--force", "bert-jax"]
    assert docker[0].endswith("/.docker")
    assert docker[1:3] == ["run", "--detach"]
    assert "--env=A=$(touch z) 'b'" in docker
    assert docker[docker.index(IMAGE) + 1 :] == ARRIVED
    assert launch.argvs("gcloud") == [["auth", "configure-docker", "registry.example", "--quiet"]]
    assert launch.untouched()


def test_a_pod_of_kubernetes_gets_the_words(launch):
    flags = ["--name=books", f"--image={IMAGE}", "--accelerator=a: {b}", "--topology=4x4", "--chips-per-node=4"]
    done = launch.script("gke.sh", "run", *flags, "--service-account=x\ny: z", *RUN)
    assert done.returncode == 0, done.stderr
    [call] = launch.calls("kubectl")
    assert call["argv"] == ["--namespace=default", "create", "--filename=-"]
    spec = json.loads(call["stdin"])["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["image"] == IMAGE
    assert spec["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "a: {b}"
    assert spec["serviceAccountName"] == "x\ny: z"
    assert [by_kubernetes(word) for word in container["args"]] == [word for word in ARRIVED if "--restarts" not in word]
    assert launch.untouched()


def test_a_workload_of_xpk_gets_the_words(launch):
    """xpk puts the line into YAML, in a block where a new line would end it; Kubernetes and then bash read it."""
    flags = ["--name=books", "--cluster=c", "--zone=z", "--tpu-type=t", f"--image={IMAGE}"]
    done = launch.script("xpk.sh", "run", *flags, *RUN)
    assert done.returncode == 0, done.stderr
    [argv] = launch.argvs("xpk")
    assert f"--docker-image={IMAGE}" in argv
    [line] = [word.removeprefix("--command=") for word in argv if word.startswith("--command=")]
    assert len(line.splitlines()) == 1
    launch.log.write_text("")
    assert launch.command("bash", "-c", f"({by_kubernetes(line)}) & wait $!").returncode == 0
    assert launch.argvs("bert-jax") == [[word for word in ARRIVED if "--restarts" not in word]]
    assert launch.untouched()


@pytest.mark.parametrize("words", [["local.sh"], ["gpu_node.sh"], ["local.sh", "--processes=2"]], ids=" ".join)
def test_a_process_of_this_machine_gets_the_words(launch, words):
    assert launch.script(*words, *RUN).returncode == 0
    assert all(argv == RUN[1:] for argv in launch.argvs("bert-jax"))
    assert launch.untouched()


def test_a_job_of_slurm_gets_the_words(launch):
    """sbatch hands the words after the script to it, which hands them to srun."""
    assert launch.script("slurm.sh", "--sbatch=--comment=$(touch x)", *RUN).returncode == 0
    [argv] = launch.argvs("sbatch")
    assert "--comment=$(touch x)" in argv
    script = next(i for i, word in enumerate(argv) if word.endswith("job.sh"))
    assert launch.script("slurm/job.sh", *argv[script + 1 :]).returncode == 0
    [step] = launch.argvs("srun")
    assert step[step.index("bert-jax") + 1 :] == [word for word in ARRIVED if "--restarts" not in word]
    assert launch.untouched()


def test_flags_of_ours_are_not_put_twice(launch):
    words = ["--", "pretrain", "--distributed=auto", "--restarts=0", "--workdir=gs://b/x"]
    launch.script("tpu_pod.sh", "run", "--name=a", "--zone=z", "--image=i", *words)
    [argv] = launch.argvs()
    assert argv[-1].endswith(" i " + " ".join(words[1:]))
    launch.script("xpk.sh", "run", "--name=a", "--cluster=c", "--zone=z", "--tpu-type=t", "--image=i", "--", "status")
    [argv] = launch.argvs()
    assert argv[-1] == "--command=exec bert-jax status"


def failure_message(job: dict, code: int | None) -> str:
    """Return Kubernetes' message about a job with a pod that ended with this code, or was disrupted (None)."""
    for i, rule in enumerate(job["podFailurePolicy"]["rules"]):
        if code in rule.get("onExitCodes", {}).get("values", []):
            return f"Container bert-jax for pod a/b failed with exit code {code} matching FailJob rule at index {i}"
        if code is None and "onPodConditions" in rule:
            return f"Pod a/b has condition DisruptionTarget matching FailJob rule at index {i}"
    return ""


def action(spec: dict, code: int | None) -> str:
    """Return the action of JobSet when a pod ends with this code, or is disrupted (None)."""
    message = failure_message(spec["replicatedJobs"][0]["template"]["spec"], code)
    reason = "PodFailurePolicy" if message else "BackoffLimitExceeded"
    for rule in spec["failurePolicy"]["rules"]:
        fits = any(re.search(pattern, message) for pattern in rule["onJobFailureMessagePatterns"])
        if fits and reason in rule["onJobFailureReasons"]:
            return rule["action"]
    return "RestartJobSet"


def test_a_jobset_restarts_as_the_exit_codes_say(launch):
    """The rules of the job give a message, and the rules of the JobSet read it."""
    flags = ["--name=books", "--image=i", "--accelerator=a", "--topology=2x2x4", "--chips-per-node=4", "--slices=3"]
    flags += ["--restarts=7", "--spot", "--privileged"]
    done = launch.command("python3", f"{ROOT}/launch/gke/jobset.py", *flags, "--", "pretrain")
    spec = json.loads(done.stdout)["spec"]
    [slices] = spec["replicatedJobs"]
    job = slices["template"]["spec"]
    assert (slices["replicas"], job["parallelism"], job["completions"], job["backoffLimit"]) == (3, 4, 4, 0)
    pod = job["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod["containers"][0]["securityContext"]["privileged"]
    assert spec["failurePolicy"]["maxRestarts"] == 7
    assert action(spec, 2) == "FailJobSet"
    assert action(spec, 75) == action(spec, None) == "RestartJobSetAndIgnoreMaxRestarts"
    assert action(spec, 1) == action(spec, 76) == action(spec, 134) == "RestartJobSet"


def test_a_failing_description_creates_nothing(launch):
    flags = ["--name=books", "--image=i", "--accelerator=a", "--topology=5x5", "--chips-per-node=4"]
    done = launch.script("gke.sh", "run", *flags, *RUN)
    assert done.returncode == 2
    assert launch.calls() == []


def test_the_quoting_is_that_of_a_shell(launch):
    """What `posix_quoted` and `displayed` print reads back as the same words, alone and within each other."""
    program = f'source {ROOT}/launch/lib.sh; "$1" "${{@:2}}"'
    for function, shell in (("posix_quoted", "sh"), ("posix_quoted", "bash"), ("displayed", "bash")):
        quoted = subprocess.run(
            ["bash", "-c", program, "x", function, *HOSTILE], capture_output=True, text=True, check=True
        ).stdout
        read = subprocess.run(
            [shell, "-c", f"printf '%s\\0' {quoted}"], capture_output=True, text=True, check=True, env=launch.env()
        ).stdout
        assert read.split("\0")[:-1] == HOSTILE
