"""Stands in for gcloud, kubectl, sbatch and the like: writes how it was called, and ends as the test says.

Calls go to ``$STUB_LOG``, one JSON object a line. ``$STUB_ANSWERS`` is JSON, {tool: [[text, [answer, ...]], ...]}: the
first text that is in the call decides, its n-th such call gets the n-th answer, the last one again and again. An answer
is {"code": 0, "out": "", "err": "", "sleep": 0, "term": code on SIGTERM, or null to ignore it}.
"""

import json
import os
import signal
import sys
import time

TOOL = os.path.basename(sys.argv[0])
CALL = {
    "tool": TOOL,
    "argv": sys.argv[1:],
    "env": {name: value for name, value in os.environ.items() if name.startswith(("BERT_JAX_", "CUDA_VIS", "JAX_"))},
    "stdin": sys.stdin.read() if "--filename=-" in sys.argv else "",
}


def text(call):
    return " ".join(call["argv"]) + f" process={call['env'].get('BERT_JAX_PROCESS_ID')}"


def answer():
    with open(os.environ["STUB_LOG"]) as log:
        earlier = [call for call in map(json.loads, log) if call["tool"] == TOOL]
    for part, answers in json.loads(os.environ.get("STUB_ANSWERS", "{}")).get(TOOL, []):
        if part in text(CALL):
            return answers[min(sum(part in text(call) for call in earlier), len(answers) - 1)]
    return {}


def record():
    line = (json.dumps(CALL) + "\n").encode()
    log = os.open(os.environ["STUB_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line)  # one write, so that processes at the same time do not mix


given = answer()
if "term" in given:
    deaf = given["term"] is None
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: sys.exit(given["term"]))
record()
sys.stderr.write(given.get("err", ""))
sys.stdout.write(given.get("out", ""))
sys.stdout.flush()
time.sleep(given.get("sleep", 0))
sys.exit(given.get("code", 0))
