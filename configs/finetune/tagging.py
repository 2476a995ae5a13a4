"""Tags the words of your own sentences, such as named entities or parts of speech.

    bert-jax finetune --config=tagging --init=MODEL --workdir=runs/names --config.data.splits.train=train.txt \\
        --config.data.splits.dev=dev.txt
    bert-jax predict --workdir=runs/names "Ada Lovelace lived in London."

A file has a word and its tag on each line and a blank line after each sentence (CoNLL's format). Word and tag are the
first and the last column, or others: ``--config.data.options.word_column=1 --config.data.options.tag_column=3``.
Without a dev file, a tenth of the sentences becomes the dev split. Tags of entities are B-PER, I-PER, O and so on, in
any scheme; for other tags give ``--config.task.metrics=accuracy``.

WikiANN's files have a language before each word (``en:London``): ``--config.data.strip_prefix.words=en:`` takes it
away. JSON Lines with lists of words and tags: ``--config.data.format=jsonl --config.data.columns.words=tokens``.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("classification")
    config.task = ConfigDict({"name": "tagging"})
    config.data.update({"format": "conll", "splits": {"train": "train.txt"}, "strip_prefix": {}})
    config.data.columns = ConfigDict()
    config.phases.train.num_epochs = 4.0
    return config
