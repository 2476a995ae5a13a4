"""Predicts a number for each text of a table of your own, such as a grade or a price.

    bert-jax finetune --config=regression --init=MODEL --workdir=runs/grades --config.data.splits.train=essays.csv \\
        --config.data.columns.text=essay --config.data.columns.label=grade

For a number for a pair of texts, name the second text too: ``--config.data.columns.pair=sentence2``. All else is as in
the recipe ``classification``.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    return recipes.derive("classification:regression")
