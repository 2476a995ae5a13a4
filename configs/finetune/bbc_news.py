"""Classifies news articles from plain text files: BBC News, 2,225 articles, one folder for each of five classes.

    bert-jax finetune --config=bbc_news --init=DIR --data=DIR --workdir=runs/bbc
    bert-jax finetune --config=bbc_news:bbc --init=DIR --data=DIR --workdir=runs/bbc
    bert-jax finetune --config=bbc_news --data=DIR --workdir=runs/bbc_zero --learning_rate=1e-3

The DIR of --data holds ``bbc-fulltext.zip`` as published; it is read without unpacking. The argument after the colon
names another zip or a folder in DIR, with a folder of ``.txt`` files for each class. One article is not UTF-8 and is
read as Windows-1252. A fifth of every class becomes the dev split, which is the same for every seed of the run.

report.html draws the train and held-out loss and accuracy. Without --init, a small model is trained from random
initialisation, with a vocabulary learned from the articles; this needs a higher learning rate.
tests/benchmarks/README.md has the scores that were reached, with the machine and the date.
"""

from ml_collections import ConfigDict


def get_config(texts: str = "bbc-fulltext.zip") -> ConfigDict:
    config = ConfigDict()

    # Examples
    config.task = ConfigDict({"name": "classification", "metrics": ("accuracy", "f1_macro")})
    config.data = ConfigDict(
        {
            "format": "text_folders",
            "options": {"pattern": "*.txt", "bad_text": "decode"},
            "splits": {"train": texts},
            "columns": {},
            "dev_fraction": 0.2,
            "split_seed": 42,
            "train_fraction": 1.0,
            "overlap": "drop",  # some articles were published twice
            "bad_examples": "error",
        }
    )

    # Model: used without --init, for random initialisation; --init brings an architecture and a vocabulary
    config.model = ConfigDict({"size": "tiny", "max_length": 512})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization. Articles have 500 tokens on average; for longer articles the beginning is enough to tell the class.
    config.phases = ConfigDict({"train": {"num_epochs": 4.0, "batch_size": 16, "max_length": 512}})
    config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.01, "bias_correction": "standard"})
    config.schedule = ConfigDict({"name": "linear_from_zero", "peak_learning_rate": 5e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "accuracy"})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
