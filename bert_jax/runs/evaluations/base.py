"""The interface of evaluations during training, and the evaluations of a run: which are due, and what they return."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.metric_names import titles_of
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import Model, Part
from bert_jax.parts import catalogue
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.experiment import Experiment
from bert_jax.training.forward import Forward

WHERE = "config.training.evaluations"


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.training.evaluations.NAME`` that every evaluation has, besides ``name``."""

    # run at one of so many evaluations, and at the last one
    every: int = dataclasses.field(default=1, kw_only=True)


@dataclasses.dataclass(frozen=True)
class CurrentModel:
    """The model of a run, without its parameters.

    Attributes:
      mesh: the devices of the run, over which parameters and rows may be split.
      between: every process calls it between two batches. It raises if the run has been told to end; the resumed run
        then repeats the evaluation.
    """

    config: ModelConfig
    mesh: Mesh
    between: Callable[[], None] = lambda: None

    def outputs(
        self, params: Any, rows: EncodedRows, parts: tuple[Part, ...] = (), batch_size: int = 32
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield (numbers of rows [n], outputs of the model for them), the shortest rows first, without dropout.

        ``models.model.Model`` with the heads ``parts`` gives the outputs, such as ``sequence`` [n, L, D], on every
        process of a job. A row that is longer than the model allows is cut.
        """
        forward = Forward(functools.partial(_outputs, self.config, parts), self.mesh, batch_size)
        for found in forward.rows(rows, self.config.max_length, params):
            yield found
            self.between()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(config: ModelConfig, parts: tuple[Part, ...], params: Any, batch: Any) -> Any:
    return Model(config, parts).apply({"params": params}, batch)


class TrainingEvaluator(abc.ABC):
    """The base class of evaluations during training. In a job, each process makes and calls it.

    ``titles``: metric -> its title in the report (``metric_names.titles_of``).
    """

    titles: Mapping[str, str] = {}

    def __init__(self, config: Any, where: str, note: Callable[[str], None]):
        """Read files and check keys, without vocabulary and model. This is called before any text is read.

        Args:
          config: the ``Config`` of the file.
          where: the path of its keys, for error messages.
          note: takes a line for the user.

        Raises:
          UserError: a key or a file that it names is wrong.
        """
        del note
        self.config, self.where = config, where

    def begin(self, model: CurrentModel, tokenizer: Tokenizer, note: Callable[[str], None]) -> None:
        """Prepare what needs the vocabulary and the sizes of the model. This is called once, before training."""
        del model, tokenizer, note

    @abc.abstractmethod
    def score(self, model: CurrentModel, params: Any, tokenizer: Tokenizer) -> dict[str, float]:
        """Return metrics, name -> value, of the current parameters, which must stay as they are.

        Args:
          params: the parameters on the devices, by part (``encoder``, ``mlm_head``, ...); frozen variables are among
            them.
        """


def check(evaluations: Mapping[str, Any], metric: str = "") -> dict[str, tuple[type[TrainingEvaluator], Config]]:
    """Return the class and the config of each of ``config.training.evaluations``. Nothing is read or computed.

    ``metric`` selects the best step.

    Raises:
      UserError: a name or a key is wrong, or a user's own file does not keep the contract.
    """
    found = {}
    for name, values in evaluations.items():
        where = f"{WHERE}.{name}"
        if not name.isidentifier():
            raise UserError(f"{WHERE} has the name {name!r}; it begins the names of metrics: letters, digits and _ go")
        if not isinstance(values, Mapping) or "name" not in values:
            known = ", ".join(catalogue.parts("runs.evaluations", having="Evaluator"))
            others = [one for one in evaluations if one != name]
            hint = f"; or is it one of the others? {configuration.nearest(name, others)}" if others else ""
            raise UserError(f"missing key {where}.name; valid: {known}, or the path of a file of your own{hint}")
        module = catalogue.find("runs.evaluations", values["name"], having="Evaluator")
        _check_class(catalogue.display_name(values["name"]), module.Evaluator, module.Config)
        config = configuration.build(module.Config, values, where, also=("name",))
        configuration.check_fields(config, where, "at least 1 is needed", "every", sound=lambda value: value >= 1)
        if config.every > 1 and metric.startswith(f"{name}/"):
            raise UserError(
                f"{where}.every is {config.every}, and config.selection.metric is {metric!r}; only 1 is allowed: the "
                "best of all evaluations is selected"
            )
        found[name] = module.Evaluator, config
    return found


def _check_class(file: str, evaluator: Any, config: Any) -> None:
    """Raise ``UserError`` unless the classes of a user's ``file`` keep the contract."""
    base = "bert_jax.runs.evaluations.base"
    for name, cls, above in (("Evaluator", evaluator, TrainingEvaluator), ("Config", config, Config)):
        if not (isinstance(cls, type) and issubclass(cls, above)):
            raise UserError(f"{file}: {name} does not derive from {base}.{above.__name__}; let it")
    if evaluator.score is TrainingEvaluator.score:
        raise UserError(f"{file}: Evaluator has no method score(self, model, params, tokenizer)")
    for name in ("__init__", "score"):
        method, base_method = getattr(evaluator, name), getattr(TrainingEvaluator, name)
        wanted = list(inspect.signature(base_method).parameters)
        try:
            inspect.signature(method).bind(*wanted)
        except TypeError as error:
            raise UserError(f"{file}: {name} is called as {name}({', '.join(wanted)}); it says: {error}") from error


def read(evaluations: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, TrainingEvaluator]:
    """Return the evaluations of a run; each has read its files. Raises ``UserError`` as ``check`` does."""
    return {name: cls(config, f"{WHERE}.{name}", note) for name, (cls, config) in check(evaluations).items()}


def titles(evaluators: Mapping[str, TrainingEvaluator]) -> dict[str, str]:
    """Return the titles of the metrics of evaluations by their whole names, such as "pairs/accuracy"."""
    own = {name: titles_of(one) for name, one in evaluators.items()}
    return {f"{name}/{metric}": f"{name}: {title}" for name, of in own.items() for metric, title in of.items()}


class Evaluations:
    """The evaluations of a run besides the evaluation of the held-out rows, for ``training.loop``."""

    def __init__(
        self,
        evaluators: Mapping[str, TrainingEvaluator],
        tokenizer: Tokenizer,
        model: ModelConfig,
        experiment: Experiment,
        note: Callable[[str], None] = lambda line: None,
    ):
        """Prepare all evaluations. Raises ``UserError`` if one does not fit the vocabulary or the model."""
        self._evaluators, self._tokenizer, self._experiment = evaluators, tokenizer, experiment
        self._model = CurrentModel(model, experiment.make_mesh())
        for evaluator in evaluators.values():
            evaluator.begin(self._model, tokenizer, note)

    def due(self, step: int) -> list[str]:
        """Return the names of the evaluations that run at ``step``, at which the held-out rows are evaluated."""
        number, last = step // self._experiment.training.eval_every_steps, self._experiment.phases.num_steps
        return [name for name, one in self._evaluators.items() if step == last or number % one.config.every == 0]

    def __call__(self, step: int, params: Any, frozen: Any, between: Callable[[], None]) -> dict[str, float]:
        """Return the metrics of the evaluations that are due, each as "NAME/metric", and NAME as the recipe has it.

        Every process calls ``between`` before each batch; it may raise.

        Raises ``UserError`` if an evaluation returns something else than numbers by name.
        """
        model, metrics = dataclasses.replace(self._model, between=between), dict[str, float]()
        for name in self.due(step):
            between()
            evaluator = self._evaluators[name]
            found = evaluator.score(model, {**frozen, **params}, self._tokenizer)
            if not (isinstance(found, Mapping) and found and all(map(_is_metric, found, found.values()))):
                file = catalogue.display_name(catalogue.name_of(type(evaluator).__module__))
                raise UserError(
                    f"{file}: score of {WHERE}.{name} returned {repr(found)[:80]}; a dict with a number for each name "
                    "of a metric is needed"
                )
            metrics |= {f"{name}/{metric}": float(value) for metric, value in found.items()}
        return metrics


def _is_metric(name: Any, value: Any) -> bool:
    on_device = isinstance(value, jax.Array) and value.shape == () and jax.dtypes.issubdtype(value.dtype, np.number)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return isinstance(name, str) and bool(name) and (number or on_device)
