"""Trains several tasks at once on one encoder, each from a table of your own, under names that you choose.

    bert-jax finetune --config=several --init=MODEL --workdir=runs/both \\
        --config.tasks.reviews.data.splits.train=reviews.csv \\
        --config.tasks.topics.data.splits.train=topics.csv --config.tasks.topics.data.columns.label=topic
    bert-jax predict --workdir=runs/both --task=reviews "a film of rare beauty"

A task is a classification unless it says otherwise (``--config.tasks.scores.task.name=regression``), its file a table,
of which a tenth of the rows is dev, unless there is a dev split (``--config.tasks.reviews.data.splits.dev=dev.csv``).
All other keys of ``config.task`` and ``config.data`` are below the name of a task as well. Each batch is of one task,
and an epoch has every example once; ``--config.mixing.alpha=0.5`` lets small tasks come more often.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("classification")
    del config.task, config.data
    config.tasks = ConfigDict()
    config.mixing = ConfigDict()
    return config
