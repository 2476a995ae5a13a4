"""Trains an encoder to make vectors of texts, from a table of your own with texts that belong together.

    bert-jax finetune --config=embeddings --init=MODEL --workdir=runs/search --config.data.splits.train=pairs.jsonl \\
        --config.data.columns.text=question --config.data.columns.positive=answer
    bert-jax retrieve --workdir=runs/search --corpus=corpus.jsonl --queries=queries.jsonl

The other positives of a batch are the negatives, so a larger batch teaches more; a column (or several) with texts that
do not belong to it may be named too (``--config.data.columns.negatives=wrong``). A tenth of the rows becomes the dev
split, unless there is one. ``sentence_embeddings`` has recipes for SQuAD, STS-B and SimCSE.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("sentence_embeddings")
    config.data = recipes.derive("classification").data
    config.data.columns = ConfigDict({"text": "text", "positive": "positive"})
    config.phases.train.max_length = 128
    return config
