"""Translates sentences: a table with a source and a target in each row.

    bert-jax finetune --config=translation --init=MODEL --workdir=runs/translation \\
        --config.data.splits.train=pairs.tsv --config.data.columns.text=english --config.data.columns.target=german
    bert-jax predict --workdir=runs/translation "A sentence."

MODEL is the workdir of a run, or a Hugging Face directory, whose vocabulary has the words of both languages.
``summarization`` says how each kind of model writes. Published for MASS (Song et al. 2019, section 4.2): Adam, inverse
square root, a rate of 1e-4 and beam search, on pairs of millions of sentences.

Modern from classical Chinese, 126,000 pairs, was learned from zero by a small encoder and decoder, in 27 to 40 minutes
on one CPU core (``--config.model.encoder=seq2seq --config.model.size=tiny --learning_rate=2e-3``): BLEU 26.7 to 27.1,
where a copy of the source has 20.2 (tests/benchmarks/README.md).

BLEU is sacrebleu's with its own tokens, "13a", or "zh" for Chinese and Japanese. Without --init, a small model is
trained from random initialisation; it needs ``--learning_rate=1e-3``.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()

    # Task and data
    metrics = ("bleu", "chrf", "rouge_l")
    config.task = ConfigDict({"name": "text_generation", "metrics": metrics, "max_target_length": 64, "num_beams": 4})
    config.data = ConfigDict(
        {
            "format": "table",  # by the end of the file's name: .csv, .jsonl; anything else is separated by tabs
            "options": {},
            "splits": {"train": "train.tsv"},
            "columns": {"text": "text", "target": "target"},
            "dev_fraction": 0.1,
            "split_seed": 42,
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from both languages
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": False})

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 20.0, "batch_size": 32, "max_length": 160}})
    config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.01})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 1e-4, "warmup_fraction": 0.1})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
