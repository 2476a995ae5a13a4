"""Writes a short text for a long one, such as a title or a summary, from a table or from articles with a title.

    bert-jax finetune --config=summarization --init=MODEL --workdir=runs/summaries \\
        --config.data.splits.train=articles.csv --config.data.columns.text=article \\
        --config.data.columns.target=summary
    bert-jax finetune --config=summarization:titles --init=MODEL --data=DIR --workdir=runs/titles
    bert-jax predict --workdir=runs/titles "Long text."

MODEL is the workdir of a run, or a Hugging Face directory. A BERT learns by masks in the target, as UniLM does (Dong et
al. 2019, section 2.5 and appendix: 70 % of the target masked, beam 5, no 3-gram twice); a GPT, or a run of ``ltr``,
goes on after the source; a model of ``mass`` decodes. ``summarization:titles`` reads ``bbc-fulltext.zip`` in DIR: the
first line of each article is its title.

report.html shows ROUGE, BLEU and chrF beside those of copying the source and of its first sentence.
tests/benchmarks/README.md has the scores that were reached. Without --init, a small model is trained from random
initialisation; it needs ``--learning_rate=1e-3``.
"""

from ml_collections import ConfigDict

TITLES = {
    "format": "text_folders",
    "options": {"first_line": "target", "bad_text": "decode"},
    "splits": {"train": "bbc-fulltext.zip"},
    "overlap": "drop",  # some articles were published twice
}
TABLE = {"format": "table", "options": {}, "splits": {"train": "train.csv"}, "overlap": "warn"}


def get_config(data: str = "table") -> ConfigDict:
    if data not in ("table", "titles"):
        raise ValueError(f"no data {data!r}; there are table, titles")
    titles = data == "titles"
    config = ConfigDict()

    # Task and data
    length = 24 if titles else 96
    config.task = ConfigDict({"name": "text_generation", "max_target_length": length, "no_repeat_ngram": 3})
    of_data = TITLES if titles else TABLE
    config.data = ConfigDict(
        {**of_data, "columns": {"text": "text", "target": "target"}, "dev_fraction": 0.1, "split_seed": 42}
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 10.0, "batch_size": 16, "max_length": 192 if titles else 512}})
    config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.01})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 5e-5, "warmup_fraction": 0.1})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
