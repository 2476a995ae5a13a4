"""Classifies the sentiment of Chinese reviews: ChnSentiCorp.

    bert-jax finetune --config=chnsenticorp --init=DIR --data=FOLDER --workdir=runs/chnsenticorp

FOLDER has train.tsv, dev.tsv and test.tsv (columns label, text_a), compressed or not. Without --init, the model in
config.model is trained from random initialisation and needs a higher learning rate (--learning_rate=5e-4).

tests/benchmarks/README.md has the scores that a small model reached.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict({"name": "classification"})
    config.data = ConfigDict(
        {
            "format": "delimited",
            "options": {"quoting": "off"},
            "splits": {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"},
            "columns": {"text": "text_a", "label": "label"},
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 3.0, "batch_size": 32, "max_length": 256}})
    config.schedule = ConfigDict({"peak_learning_rate": 2e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "accuracy"})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
