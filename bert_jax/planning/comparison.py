"""Compares predicted with measured step times, and keeps how far predictions were off, for the next one to say.

Each compared phase of a run is a small file in the user's cache (``$BERT_JAX_CACHE``, else ``~/.cache/bert_jax``, below
``predictions``), where a plan of any recipe for the same machine finds it. Comparing a run again replaces its files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import config_facts
from bert_jax.planning.plan import PhasePlan
from bert_jax.planning.topologies import Topology
from bert_jax.reporting.formats import is_number, short_time
from bert_jax.reporting.pace import Pace
from bert_jax.rows.phases import Phase
from bert_jax.storage import files, reading
from bert_jax.training.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class ComparedPhase:
    """A phase of a run whose steps were predicted and measured. Times are seconds of a step.

    Attributes:
      windows: the number of log windows in which the run trained steadily.
      p10, measured, p90: percentiles of the windows' step times; ``measured`` is the median.
      input_wait: the share of the measured time in which the host waited for a batch.
      step_key: a hash of what the step computes, and on which layout.
    """

    phase: str
    windows: int
    predicted: float
    p10: float
    measured: float
    p90: float
    input_wait: float
    step_key: str

    @property
    def ratio(self) -> float:
        """Return measured / predicted."""
        return self.measured / self.predicted

    def line(self) -> str:
        predicted, p10, measured, p90 = map(short_time, (self.predicted, self.p10, self.measured, self.p90))
        return (
            f"{self.phase}: PREDICTED step {predicted}, MEASURED {measured} (median of {self.windows:,} log windows; "
            f"p10 {p10}, p90 {p90}), {self.ratio:.2f} x the prediction; waiting for input {self.input_wait:.1%}"
        )


def compare_phase(phase: PhasePlan, windows: Pace, experiment: Experiment, shape: ModelConfig) -> ComparedPhase | None:
    """Return the comparison of a phase; None if no step was predicted, because it does not fit into memory."""
    if phase.prediction is None:
        return None
    p10, p50, p90 = (windows.percentile(percent) or 0.0 for percent in (10, 50, 90))
    waits: list[Any] = [record.get("input_wait_seconds") for record in windows.records]
    waited = sum(wait for wait in waits if is_number(wait))
    spent = sum(record["step_seconds"] for record in windows.records) * windows.steps
    of, key = phase.phase.kind, _step_key(phase.phase, experiment, shape)
    return ComparedPhase(of, len(windows.records), phase.prediction.seconds, p10, p50, p90, waited / spent, key)


def _step_key(phase: Phase, experiment: Experiment, shape: ModelConfig) -> str:
    """Return a hash of the model, the batch and the layout of a step."""
    mesh, gradient_dtype = dataclasses.asdict(experiment.mesh), experiment.training.gradient_dtype
    layout = [mesh, experiment.micro_batches(phase), gradient_dtype]
    parts = [config_facts(shape), phase.batch_size, phase.max_length, layout]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def keep(topology: Topology, run_id: str, phases: list[ComparedPhase]) -> Path:
    """Write the comparison of a run to the cache; return the folder.

    Raises:
      UserError: the cache cannot be written.
    """
    folder = _folder(topology)
    for phase in phases:
        name = hashlib.sha256(f"{run_id} {phase.phase}".encode()).hexdigest()[:16]
        content = {"run": run_id, **dataclasses.asdict(phase)}
        files.write_text(folder / f"{name}.json", json.dumps(content, indent=1))
    return folder


def look_up(topology: Topology, experiment: Experiment, shape: ModelConfig) -> tuple[str, float | None]:
    """Return (a line, measured / predicted): how far earlier predictions for a machine were off.

    Comparisons of this recipe come before those of other recipes. The ratio is None if nothing was compared.
    """
    name, kept = topology.name, _read_entries(_folder(topology))
    keys = {_step_key(phase, experiment, shape) for phase in experiment.phases.phases}
    if own := [entry for entry in kept if entry["step_key"] in keys]:
        return f"measured steps of this recipe on {name} were {_off(own)}", _ratio(own)
    if kept:
        others = f"measured steps of other recipes on {name} were {_off(kept)}"
        return f"{others}; of this one none was compared", _ratio(kept)
    then = f"after a run on {name}, bert-jax plan --compare=WORKDIR does so, and the next plan has the ratio"
    return f"no prediction for {name} was compared with a measurement yet; {then}", None


def _off(entries: list[dict[str, Any]]) -> str:
    ratios = sorted(entry["measured"] / entry["predicted"] for entry in entries)
    runs = len({entry["run"] for entry in entries})
    span = "" if len(ratios) == 1 else f" ({ratios[0]:.2g} to {ratios[-1]:.2g} x)"
    return f"{_ratio(entries):.2g} x the prediction in {runs} run{'s' * (runs > 1)}{span}"


def _ratio(entries: list[dict[str, Any]]) -> float:
    return statistics.median(entry["measured"] / entry["predicted"] for entry in entries)


def _folder(topology: Topology) -> Path:
    return files.cache_directory() / "predictions" / topology.name.replace(":", "-")


def _read_entries(folder: Path) -> list[dict[str, Any]]:
    """Return the sound entries of a machine's folder in the cache; one that cannot be read is left out."""
    found = []
    try:
        names = sorted(folder.glob("*.json"))
    except OSError:
        return []
    for path in names:
        try:
            entry = reading.read_object(path) or {}
        except (OSError, UserError):
            continue
        times = [entry.get("measured"), entry.get("predicted")]
        if all(is_number(seconds) and seconds > 0 for seconds in times):
            found.append({"run": None, "step_key": None, **entry})
    return found
