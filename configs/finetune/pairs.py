"""Classifies pairs of texts from a table of your own, such as a premise and a hypothesis, or two questions.

    bert-jax finetune --config=pairs --init=MODEL --workdir=runs/nli --config.data.splits.train=pairs.tsv \\
        --config.data.columns.text=premise --config.data.columns.pair=hypothesis --config.data.columns.label=gold
    bert-jax predict --workdir=runs/nli "A man plays a guitar." "Somebody makes music."

All else is as in the recipe ``classification``. SICK, for example, has all its splits in one file:
``--config.data.splits.train=SICK.txt --config.data.split_column=SemEval_set``, with the columns sentence_A, sentence_B
and entailment_label.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    return recipes.derive("classification:pairs")
