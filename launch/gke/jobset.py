"""The JobSet of a run on TPU slices, as JSON: what ``launch/gke.sh`` hands to kubectl.

    python3 launch/gke/jobset.py --name=books --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=4x4 \
        --chips-per-node=4 -- pretrain --config=bert_large --workdir=gs://BUCKET/runs/books

Only the standard library, so that it runs wherever kubectl does. Sources: Kubernetes, Job API, pod failure policy;
JobSet 0.10, failure policy (message patterns came with 0.10); Google Kubernetes Engine, TPU slices.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from typing import Any, NoReturn

BAD_INPUT, PREEMPTED = 2, 75  # exit codes of bert-jax, see launch/README.md


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def failure_policy(restarts: int) -> dict[str, Any]:
    """What a job that ended badly leads to, by the first rule that fits. A crash fits none: restarted, and counted."""
    return {
        "maxRestarts": restarts,
        "rules": [
            _rule("badInput", "FailJobSet", f"exit code {BAD_INPUT} matching"),
            _rule("preemptedAndSaved", "RestartJobSetAndIgnoreMaxRestarts", f"exit code {PREEMPTED} matching"),
            _rule("nodeLost", "RestartJobSetAndIgnoreMaxRestarts", "condition DisruptionTarget matching"),
        ],
    }


def _rule(name: str, action: str, pattern: str) -> dict[str, Any]:
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [pattern],
    }


def pod_failure_policy() -> dict[str, Any]:
    """Makes the job fail with a message that says why, which ``failure_policy`` reads. An exit code says more than the
    disruption that came with it, so it is looked at first."""
    codes = {"containerName": "bert-jax", "operator": "In", "values": [BAD_INPUT, PREEMPTED]}
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": codes},
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }


def literal(word: str) -> str:
    """``word`` for an ``args`` list, where Kubernetes would replace ``$(NAME)``; it turns ``$$`` into ``$``."""
    return word.replace("$", "$$")


def pod(options: argparse.Namespace) -> dict[str, Any]:
    chips = {"google.com/tpu": options.chips_per_node}
    selector = {
        "cloud.google.com/gke-tpu-accelerator": options.accelerator,
        "cloud.google.com/gke-tpu-topology": options.topology,
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "hostNetwork": True,  # between slices, faster than the network of the pods
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": options.grace,
        "nodeSelector": selector,
        "containers": [
            {
                "name": "bert-jax",
                "image": options.image,
                "args": [literal(word) for word in options.words],
                "resources": {"requests": chips, "limits": chips},
            }
        ],
    }
    if options.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        spec["tolerations"] = [{"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"}]
    if options.privileged:
        spec["containers"][0]["securityContext"] = {"privileged": True, "runAsUser": 0}
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    return spec


def jobset(options: argparse.Namespace) -> dict[str, Any]:
    """One job a slice, one pod a node; GKE tells each pod its place, which ``--distributed=auto`` finds."""
    nodes = math.prod(int(side) for side in options.topology.split("x")) // options.chips_per_node
    job = {
        "parallelism": nodes,
        "completions": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # a process is never replaced alone: all start again
        "podFailurePolicy": pod_failure_policy(),
        "template": {"spec": pod(options)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": options.name,
            "namespace": options.namespace,
            # A slice is a node pool, and its pods take all of it.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": failure_policy(options.restarts),
            "replicatedJobs": [{"name": "slice", "replicas": options.slices, "template": {"spec": job}}],
        },
    }


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(prog="jobset.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--image", required=True)
    parser.add_argument("--accelerator", required=True, help="label of the node pool, such as tpu-v5-lite-podslice")
    parser.add_argument("--topology", required=True, help="of a slice, such as 4x4 or 2x2x4")
    parser.add_argument("--chips-per-node", type=int, required=True)
    parser.add_argument("--slices", type=int, default=1)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--grace", type=int, default=300, help="seconds between the signal and the end of a pod")
    parser.add_argument("--service-account", default="")
    parser.add_argument("--spot", action="store_true")
    parser.add_argument("--privileged", action="store_true", help="as root, with the devices of the node")
    parser.add_argument("words", nargs="+", help="-- VERB and its flags")
    options = parser.parse_args(argv)
    if not re.fullmatch(r"\d+(x\d+){1,2}", options.topology):
        parser.error(f"--topology={options.topology} is not AxB or AxBxC")
    if min(options.chips_per_node, options.slices) < 1 or min(options.restarts, options.grace) < 0:
        parser.error("--chips-per-node and --slices are at least 1, --restarts and --grace at least 0")
    chips = math.prod(int(side) for side in options.topology.split("x"))
    if not chips or chips % options.chips_per_node:
        parser.error(f"{chips} chips of --topology={options.topology} are no nodes of {options.chips_per_node} chips")
    return options


if __name__ == "__main__":
    print(json.dumps(jobset(parse(sys.argv[1:])), indent=2))
