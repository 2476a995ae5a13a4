"""Fine-tunes on a task of GLUE, from its TSV files (Devlin et al. 2019, section 4.1).

    bert-jax finetune --config=glue:sst2 --init=DIR --data=GLUE --workdir=runs/sst2

The argument is sst2, mrpc, cola, rte, stsb, wnli, qnli, mnli or qqp. GLUE is a folder with SST-2/train.tsv and so on,
compressed (.xz, .gz, ...) or not. MRPC is made from msr_paraphrase_train.txt and dev_ids.tsv, because a train.tsv in
circulation lacks a row. Without --init, the model in config.model is trained from random initialisation and needs a
higher learning rate (--learning_rate=5e-4).

To read a prepared TFDS dataset instead, here RTE:

    --config.data.format=tfds_dataset --config.data.options.name=glue/rte --data=
    --config.data.splits="{'train': 'train', 'dev': 'validation'}"

tests/benchmarks/README.md has the scores that small models reached. The paper chooses on dev among learning rates of
5e-5, 4e-5, 3e-5 and 2e-5, and trains for 3 epochs with batches of 32.
"""

from ml_collections import ConfigDict

TABLES = {"train": "train.tsv", "dev": "dev.tsv"}
SENTENCES = {"text": "sentence1", "pair": "sentence2"}
TASKS = {  # name -> (folder, columns, options of the task, metric that selects the best evaluation)
    "sst2": ("SST-2", {"text": "sentence"}, {}, "accuracy"),
    "mrpc": (
        "MRPC",
        {"text": "#1 String", "pair": "#2 String", "label": "Quality", "id": ("#1 ID", "#2 ID")},
        {"metrics": ("accuracy", "f1"), "positive": "1"},
        "f1",
    ),
    "cola": ("CoLA", {"text": "3", "label": "1"}, {"metrics": ("matthews_correlation",)}, "matthews_correlation"),
    "rte": ("RTE", SENTENCES, {}, "accuracy"),
    "stsb": ("STS-B", {**SENTENCES, "label": "score"}, {"name": "regression"}, "spearmanr"),
    "wnli": ("WNLI", SENTENCES, {}, "accuracy"),
    "qnli": ("QNLI", {"text": "question", "pair": "sentence"}, {}, "accuracy"),
    "mnli": ("MNLI", {**SENTENCES, "label": "gold_label"}, {}, "accuracy"),
    "qqp": (
        "QQP",
        {"text": "question1", "pair": "question2", "label": "is_duplicate"},
        {"metrics": ("accuracy", "f1"), "positive": "1"},
        "f1",
    ),
}


def get_config(name: str = "sst2") -> ConfigDict:
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; there are {', '.join(TASKS)}")
    folder, columns, task, metric = TASKS[name]
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict({"name": "classification", **task})
    splits = dict(TABLES)
    if name == "mnli":
        splits = {"train": "train.tsv", "dev_matched": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"}
    if name == "mrpc":
        splits = {"train": "msr_paraphrase_train.txt"}
    config.data = ConfigDict(
        {
            "format": "delimited",
            "options": {"header": name != "cola", "quoting": "off"},
            "splits": {split: f"{folder}/{file}" for split, file in splits.items()},
            "columns": columns,
            "dev_ids": f"{folder}/dev_ids.tsv" if name == "mrpc" else "",
            "bad_examples": "skip" if name == "qqp" else "error",  # a few rows of QQP lack a question
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 3.0, "batch_size": 32, "max_length": 128}})
    config.schedule = ConfigDict({"peak_learning_rate": 2e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": metric})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
