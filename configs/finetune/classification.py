"""Classifies texts from a table of your own: CSV, TSV or JSON Lines with a text and a label in each row.

    bert-jax finetune --config=classification --init=MODEL --workdir=runs/reviews \\
        --config.data.splits.train=reviews.csv --config.data.columns.text=review --config.data.columns.label=stars
    bert-jax predict --workdir=runs/reviews "a film of rare beauty"

MODEL is a Hugging Face directory or the workdir of a run. The names of the columns are in the first line of the file
(``--config.data.options.header=False`` numbers them from 0). A tenth of the rows becomes the dev split, unless there is
one: ``--config.data.splits.dev=dev.csv``, or a column that says which row belongs where
(``--config.data.split_column=set``). ``--config.data.max_dev_rows=2000`` shortens evaluations.

``classification:pairs`` and ``classification:regression`` are the recipes ``pairs`` and ``regression``. Without
--init, a small model is trained from random initialisation; it needs ``--learning_rate=5e-4``.
"""

from ml_collections import ConfigDict

TASKS = {  # kind -> (task, columns)
    "texts": ({"name": "classification", "metrics": ("accuracy", "f1_macro")}, {"text": "text", "label": "label"}),
    "pairs": (
        {"name": "classification", "metrics": ("accuracy", "f1_macro")},
        {"text": "sentence1", "pair": "sentence2", "label": "label"},
    ),
    "regression": ({"name": "regression"}, {"text": "text", "label": "label"}),
}


def get_config(kind: str = "texts") -> ConfigDict:
    if kind not in TASKS:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(TASKS)}")
    task, columns = TASKS[kind]
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict(task)
    config.data = ConfigDict(
        {
            "format": "table",  # by the end of the file's name: .csv, .jsonl; anything else is separated by tabs
            "options": {},
            "splits": {"train": "train.csv"},
            "columns": columns,
            "dev_fraction": 0.1,
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 3.0, "batch_size": 32, "max_length": 128}})
    config.schedule = ConfigDict({"peak_learning_rate": 3e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": ""})  # "": the main metric of the task

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
