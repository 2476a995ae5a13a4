"""Predicts the relation of two entities that a sentence mentions: FewRel (Han et al. 2018), all relations at once.

    bert-jax finetune --config=fewrel --init=DIR --data=FEWREL --workdir=runs/fewrel
    bert-jax finetune --config=fewrel --init=runs/ernie_thu --data=FEWREL --workdir=runs/fewrel_thu \\
        --config.task.entities=graph/vectors.npy --config.task.lexicon=graph/entities.tsv

FEWREL is a folder with val_wiki.json, 700 sentences for each of 16 relations; other files of this form are named by
``--config.data.splits.train=FILE``, and a fifth of the sentences is dev. Sentences of your own are JSON Lines
(``--config.data.format=jsonl``): ``{"text", "head": [start, end], "tail": [start, end], "label"}``, in characters, and
``head_entity`` and ``tail_entity`` where the lexicon names the entities otherwise than the text. FewRel has ids of
Wikidata there. If the vocabulary lacks the marks of mentions, add them: ``--config.vocab.added="('#', '$')"``.

Batch, rate, epochs, length and marks are those of thunlp/ERNIE. Zhang et al. 2019 (table 5) took 100 sentences of each
of 80 relations to train on and 200 to test on, and left the facts of the test out of the graph; the F1 of ERNIE was
88.32. Without --init, a small model is trained from random initialisation; it needs ``--learning_rate=5e-4``.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict({"name": "relation_classification", "metrics": ("accuracy", "f1_macro")})
    config.data = ConfigDict(
        {
            "format": "fewrel",
            "options": {},
            "splits": {"train": "val_wiki.json"},
            "columns": {},
            "dev_fraction": 0.2,
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 10.0, "batch_size": 32, "max_length": 256}})
    config.schedule = ConfigDict({"peak_learning_rate": 2e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "accuracy"})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
