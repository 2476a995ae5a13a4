"""The fine-tunings of an ablation: their recipes, and what can be checked before the first model is pretrained."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_jax.errors import UserError
from bert_jax.examples.load import load
from bert_jax.interchange.initial import Initial
from bert_jax.models.config import ModelConfig
from bert_jax.records import Example
from bert_jax.runs import finetuning, recipes
from bert_jax.runs.model_choice import choose_model
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A recipe with which all pretrained models are fine-tuned.

    Attributes:
      name: the recipe's short name, which begins the names of its runs and metrics.
      given: what the user gave, such as ``glue:sst2 --config.train.num_epochs=1``.
      data: the folder of the labelled examples.
    """

    name: str
    given: str
    data: str
    config: dict[str, Any]
    settings: finetuning.FinetuningSettings
    module: ModuleType
    task_config: Any
    splits: Mapping[str, tuple[Example, ...]]

    def check(self, tokenizer: Tokenizer, models: Sequence[ModelConfig], bilstm_layers: int) -> None:
        """Check all that a fine-tuning checks before its first step, but for the weights to start from.

        The examples are encoded for the first of the ``models`` alone; of the others only the lengths are checked.

        Raises:
          UserError: as ``finetuning.finetune``.
        """
        settings, roles = dataclasses.replace(self.settings, bilstm_layers=bilstm_layers), self.module.Task.roles
        train = next(examples for name, examples in self.splits.items() if name.startswith("train"))
        splits = {name: examples for name, examples in self.splits.items() if not name.startswith("test")}
        try:
            every = finetuning.all_to_train_on(settings.data, self.data, roles, train)
            labels = self.module.Task.labels(self.task_config, every)
            starts = [Initial("", {}, model, tokenizer) for model in models]
            shapes = [choose_model(settings.model, tokenizer.size, start) for start in starts]
            given = [finetuning.setting(settings, splits, tokenizer, shape, labels) for shape in shapes]
            task = self.module.Task(self.task_config, given[0])
            task.check(self.splits)
            experiment = finetuning.make_experiment(settings, task)
            experiment.check()
            finetuning.check_metric(settings.selection.metric, task, experiment)
        except UserError as error:
            raise UserError(f"{self.given}: {error}") from error


def read(every: Sequence[str], data: str) -> list[Tuning]:
    """Return the fine-tunings that are asked for, with the examples in the folder ``data``.

    Args:
      every: for each a recipe, and after it, if wanted, ``--config.key=value``, separated by spaces.

    Raises:
      UserError: a recipe or its examples are wrong, or two recipes have one name.
    """
    found: dict[str, Tuning] = {}
    for given in every:
        recipe, *overrides = re.split(r"\s+(?=--?config\.)", given.strip())
        name = re.sub(r"\.py$|\.json$", "", re.split(r"[/:]", recipe)[-1])
        if name in found:
            raise UserError(
                f"--finetune has {found[name].given!r} and {given!r}, whose runs would have one name, {name!r}; leave "
                "one out, rename its file, or compare settings of one model with bert-jax sweep --init"
            )
        config = recipes.load(recipe, overrides).to_dict()
        try:
            settings, module, task_config = finetuning.checked(config)
            splits = load(settings.data, data, module.Task.roles, lambda _: None)
            finetuning.check_splits(splits)
        except UserError as error:
            raise UserError(f"{given}: {error}") from error
        found[name] = Tuning(name, given, data, config, settings, module, task_config, splits)
    return list(found.values())
