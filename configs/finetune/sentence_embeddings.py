"""Trains an encoder to make vectors of texts for search and comparison, from pairs of texts that belong together.

    bert-jax finetune --config=sentence_embeddings:squad --init=DIR --data=DIR --workdir=runs/embeddings
    bert-jax retrieve --workdir=runs/embeddings --squad=FILE

``squad``: questions and their paragraphs, in files of SQuAD's format. The other paragraphs of a batch are negatives.

``stsb``: pairs of sentences with a similarity from 0 to 5 (STS-B of GLUE). Pairs of similarity 4 or more are positives;
the best checkpoint is the one whose cosines agree best with the similarities of dev.

``simcse``: the sentences of the same files, without similarities. The positive of a sentence is the sentence itself,
encoded again with different dropout.
"""

from ml_collections import ConfigDict

from bert_jax.errors import UserError

STSB = {
    "format": "delimited",
    "options": {},
    "splits": {"train": "train.tsv", "dev": "dev.tsv"},
    "columns": {"text": "sentence1", "positive": "sentence2", "similarity": "score"},
    "bad_examples": "skip",
}
SQUAD = {
    "format": "squad_json",
    "options": {},
    "splits": {"train": "train.json", "dev": "dev.json"},
    "columns": {"text": "question", "positive": "context"},
}


def get_config(data: str = "squad") -> ConfigDict:
    if data not in ("squad", "stsb", "simcse"):
        raise UserError(f"sentence_embeddings has the data squad, stsb and simcse; found {data!r}")
    config = ConfigDict()
    config.task = ConfigDict({"name": "sentence_embeddings", "temperature": 0.05})
    config.data = ConfigDict(SQUAD if data == "squad" else STSB)
    # A larger batch has more negatives.
    config.phases = ConfigDict(
        {"train": {"num_epochs": 3.0, "batch_size": 64, "max_length": 256 if data == "squad" else 64}}
    )
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 2e-5})
    config.selection = ConfigDict({"metric": "ndcg@10" if data == "squad" else "spearmanr"})
    if data != "squad":
        config.task.min_similarity = 4.0
    if data == "simcse":
        config.task.positives = "dropout"
        config.task.min_similarity = 0.0
        config.schedule.peak_learning_rate = 3e-5
        config.phases.train.num_epochs = 1.0
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()
    config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.01})
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
