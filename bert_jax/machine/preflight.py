"""Checks a multi-host job before it is started: whether its hosts agree, and whether everything it needs is present."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.cluster import distributed
from bert_jax.errors import UserError
from bert_jax.inspection.check import Check
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.program import size
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.inputs import Inputs, read_initial
from bert_jax.runs.models_read import check_vocabularies, frozen_contents
from bert_jax.runs.pretraining import Pretraining
from bert_jax.storage import files
from bert_jax.task import Task, tasks_of
from bert_jax.text import tokenizer as tokenizers
from bert_jax.training import mesh as meshes
from bert_jax.workdir.run_record import check_workdir

_ALL_REDUCE_BYTES = 64 * 2**20
_STATE_COPIES = 3  # a checkpoint holds the parameters and two moments, all float32
KEPT = 2  # at least so many checkpoints are on the disk at a time


def preflight(
    config: Mapping[str, Any], workdir: str, init: str | None = None, typed: tuple[str, ...] = ()
) -> list[Check]:
    """Check the job that this process belongs to, and return the checks, which are the same on every process.

    Args:
      init: the model from which the run starts.
      typed: the keys of the config that were given on the command line.

    Raises:
      UserError: the recipe cannot be read.
    """
    settings = PretrainingSettings.of(config)
    initial, recipe, check = _recipe(settings, init, typed)
    task = recipe.task if recipe else None
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12]
    inputs = Inputs(workdir, settings.vocab, settings.corpus, initial, bound=False, typed=typed)
    report = {"config": digest, **_of_host(), **_of_inputs(inputs, task), **_of_workdir(workdir)}
    needed = KEPT * _STATE_COPIES * 4 * task.setting.model.num_parameters if task else 0
    processes = [json.loads(text) for text in distributed.exchange("preflight", json.dumps(report))]
    return [
        _processes(processes),
        *(_alike(name, processes) for name in ("code", "config", "Python", "jax", "devices a process")),
        *(_alike(name, processes, needed=True) for name in ("vocabulary", "corpus")),
        *([_alike("frozen", processes)] if any(one["frozen"] for one in processes) else []),
        *(Check("inputs", "bad", text) for text in dict.fromkeys(t for one in processes for t in one["problems"])),
        *(_shared(processes), check, _disk(processes, needed), _all_reduce()),
    ]


# ---- What a process reports about itself -----------------------------------------------------------------------------


def _of_host() -> dict[str, Any]:
    devices = jax.local_devices()
    return {
        "host": socket.gethostname(),
        "index": jax.process_index(),
        "seen": jax.process_count(),
        "code": distributed.code_hash(),
        "Python": platform.python_version(),
        "jax": jax.__version__,
        "devices a process": f"{len(devices)} x {devices[0].device_kind}",
    }


def _of_inputs(inputs: Inputs, task: Task | None) -> dict[str, Any]:
    """Return the hashes of vocabulary, corpus and the models that ``task`` reads, and a list ``problems``.

    Hashes are None if the input is missing. ``problems`` has a message for each fault that would make a run
    fail: a folder that cannot be a workdir, a damaged input, a missing corpus that the recipe names, or a model of
    another vocabulary.
    """
    problems: list[str] = []
    read = (
        [f"{name}@{one}" for of in tasks_of(task).values() for name, one in frozen_contents(of).items()] if task else []
    )
    facts: dict[str, Any] = {"vocabulary": None, "corpus": None, "problems": problems}
    facts["frozen"] = ", ".join(dict.fromkeys(read)) or None
    with _collect(problems):
        if not files.is_remote(inputs.workdir):
            check_workdir(Path(files.as_path(inputs.workdir)))
    with _collect(problems):
        tokenizer = inputs.source_tokenizer
        if tokenizer is None and (path := tokenizers.existing(inputs.workdir)):
            tokenizer = tokenizers.load(path, *inputs.case)
        facts["vocabulary"] = tokenizer and tokenizer.sha256[:12]
        if task:
            check_vocabularies(task, tokenizer, inputs.vocab.added)
    with _collect(problems):
        if all(files.is_whole(place) for place in inputs.places().values()):
            facts["corpus"] = inputs.there().fingerprint[:12]
        elif inputs.corpus.path:
            problems.append(f"{inputs.corpus.path} is no corpus")
    return facts


@contextlib.contextmanager
def _collect(problems: list[str]) -> Iterator[None]:
    """Context manager: append the message of an error to ``problems`` in place of raising it."""
    try:
        yield
    except (UserError, OSError) as error:
        problems.append(str(error))


def _of_workdir(workdir: str) -> dict[str, Any]:
    """Return whether this process can write in the workdir and sees what process 0 writes there, and the free bytes."""
    folder = files.as_path(workdir)
    token = distributed.exchange("preflight token", uuid.uuid4().hex)[0]
    mine, theirs = (folder / f".preflight-{token}-{number}" for number in (jax.process_index(), 0))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mine.write_text(token)
        writes = True
    except (OSError, UserError):  # the object store refuses or does not answer
        writes = False
    distributed.wait("preflight files written")
    sees = False
    with contextlib.suppress(UserError, OSError):
        sees = theirs.read_text() == token
    distributed.wait("preflight files seen")
    if writes:
        mine.unlink()
    free = None if files.is_remote(workdir) or not writes else shutil.disk_usage(folder).free
    return {"workdir": str(workdir), "writes": writes, "sees": sees, "free": free}


# ---- The checks, from the reports of all processes -----------------------------------------------------------------


def _processes(processes: Sequence[Mapping[str, Any]]) -> Check:
    indices, hosts = sorted(one["index"] for one in processes), sorted({one["host"] for one in processes})
    found = f"{len(processes)} on {len(hosts)} host{'s' * (len(hosts) != 1)}, {len(jax.devices())} devices"
    if indices != list(range(len(processes))) or any(one["seen"] != len(processes) for one in processes):
        return Check("processes", "bad", f"{found}, of indices {indices}", "start every process with its own number")
    return Check("processes", "ok", found)


def _alike(name: str, processes: Sequence[Mapping[str, Any]], needed: bool = False) -> Check:
    values = [one[name] for one in processes]
    without = [one["host"] for one in processes if one[name] is None]
    if needed and len(without) == len(processes) == 1:
        return Check(name, "ok", "missing: the run makes it")
    if needed and len(without) == len(processes):
        advice = f"make it once: bert-jax {'vocab' if name == 'vocabulary' else 'corpus'}, and name it in the config"
        return Check(name, "bad", "missing", advice)
    if len(set(values)) == 1:
        return Check(name, "ok", str(values[0]))
    others = [
        f"{one[name] or 'none'} on {one['host']} (process {one['index']})"
        for one in processes
        if one[name] != values[0]
    ]
    return Check(
        name, "bad", f"{values[0] or 'none'} on {processes[0]['host']}, {', '.join(others[:3])}", "make them the same"
    )


def _shared(processes: Sequence[Mapping[str, Any]]) -> Check:
    cannot = [f"process {one['index']} on {one['host']}" for one in processes if not one["writes"]]
    blind = [f"process {one['index']} on {one['host']}" for one in processes if not one["sees"]]
    if cannot:
        return Check(
            "workdir", "bad", f"{processes[0]['workdir']}: {', '.join(cannot[:3])} cannot write", "mend its rights"
        )
    if blind:
        found = f"{processes[0]['workdir']}: {', '.join(blind[:3])} cannot see what process 0 writes"
        return Check("workdir", "bad", found, "choose a shared mount or gs://")
    return Check("workdir", "ok", f"{processes[0]['workdir']}: written and seen by all")


def _recipe(
    settings: PretrainingSettings, init: str | None, typed: tuple[str, ...]
) -> tuple[TrainedModel | None, Pretraining | None, Check]:
    """Return the model of ``--init``, the checked recipe, and a finding on both, before any text is read."""
    initial = None
    try:
        initial = read_initial(settings.vocab, typed, init) if init else None
        recipe = Pretraining(settings, initial)
    except UserError as error:
        return initial, None, Check("recipe", "bad", str(error))
    shape = recipe.mesh.shape
    sizes = ", ".join(f"{phase.kind} {phase.batch_size:,}" for phase in recipe.experiment.phases.phases)
    found = f"mesh {', '.join(f'{k} {v}' for k, v in shape.items())}; batches {sizes}"
    return initial, recipe, Check("recipe", "ok", found)


def _disk(processes: Sequence[Mapping[str, Any]], needed: int) -> Check:
    free = [one["free"] for one in processes if one["free"] is not None]
    if not free:
        return Check("free disk", "ok", "not asked: no local folder that can be written")
    found = f"{size(min(free))} where the workdir lies; {size(needed)} for {KEPT} steps"
    return Check("free disk", "bad" if min(free) < needed else "ok", found)


def _all_reduce() -> Check:
    """Return a finding with the time of a sum over all devices.

    The sum is computed twice and the second time is measured, because the first includes the compilation.
    """
    mesh = meshes.make_mesh(meshes.MeshConfig())
    rows = len(jax.devices())
    share = meshes.share_of(mesh)
    ones = np.ones((len(share.parts), _ALL_REDUCE_BYTES // 4), np.float32)
    x = meshes.to_devices({"x": ones}, mesh)["x"]
    add = jax.jit(lambda value: jnp.sum(value, axis=0), out_shardings=meshes.replicated(mesh))
    right = bool(np.all(np.asarray(add(x).addressable_data(0)) == rows))
    start = time.perf_counter()
    add(x).block_until_ready()
    seconds = time.perf_counter() - start
    found = f"{_ALL_REDUCE_BYTES / 2**20:.0f} MiB over {rows} devices in {1e3 * seconds:,.1f} ms"
    return Check("all-reduce", "ok" if right else "bad", found, "" if right else "the sum is wrong")
