"""Logs to MLflow (extra ``mlflow``).

MLflow's own environment variables choose the server and the experiment (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import optional_library
from bert_jax.reporting.loggers.base import Record, RunFacts, flatten, numbers

TAG = "bert_jax.run_id"
_LONGEST_VALUE = 500  # most characters of a parameter that every server version accepts


class Logger:
    """A run in MLflow, found again after a restart by a tag, because the server chooses the ids of runs.

    The server never forgets a value. A resumed run computes the same figures again, so steps that the server already
    has are not sent twice.
    """

    def __init__(self) -> None:
        self._mlflow = optional_library("mlflow", "the logger 'mlflow'")
        self._client: Any = None
        self._id = ""
        self._last_step: dict[str, int] = {}  # split -> last step that the server had at the start

    def start(self, run: RunFacts) -> None:
        self._client = self._mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bert_jax")
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([experiment_id], f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            self._last_step = self._steps_there(found[0].data.metrics)
            return
        self._id = self._client.create_run(experiment_id, tags={TAG: run.run_id}, run_name=run.name).info.run_id
        for key, value in flatten(run.config).items():
            self._client.log_param(self._id, key, str(value)[:_LONGEST_VALUE])

    def _steps_there(self, latest: Mapping[str, float]) -> dict[str, int]:
        one_of_each = {name.split("/")[0]: name for name in latest}
        history = {split: self._client.get_metric_history(self._id, name) for split, name in one_of_each.items()}
        return {split: max(metric.step for metric in metrics) for split, metrics in history.items()}

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        if step <= self._last_step.get(split, -1):
            return
        values = numbers(metrics).items()
        batch = [Metric(f"{split}/{name}", value, int(time * 1000), step) for name, value in values]
        self._client.log_batch(self._id, metrics=batch)

    def cut_back(self, records: Sequence[Record]) -> None:
        pass

    def close(self) -> None:
        if self._id:
            self._client.set_terminated(self._id)
