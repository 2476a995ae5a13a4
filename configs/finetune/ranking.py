"""Says which of several candidates is right, such as the sentence that answers a question, from a table of your own.

    bert-jax finetune --config=ranking --init=MODEL --workdir=runs/answers --config.data.splits.train=train.tsv \\
        --config.data.columns.text=question --config.data.columns.pair=sentence
    bert-jax predict --workdir=runs/answers --input=new.tsv

A row of the file (CSV, TSV or JSON Lines) is one candidate, with the columns text, pair and label; of the two labels
``--config.task.positive`` names the label of the right candidate (by default the label that sorts last). Rows with the
same text are a group, unless the file has a column for the role ``group``. All else is as in ``classification``.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("classification:pairs")
    config.task = ConfigDict({"name": "ranking"})
    config.data.columns = ConfigDict({"text": "text", "pair": "pair", "label": "label"})
    config.phases.train.batch_size = 16
    return config
