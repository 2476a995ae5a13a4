"""Multiple choice: selects the likeliest continuation or the answer to a question (Devlin et al. 2019, section 4.4).

    bert-jax finetune --config=swag:dream --init=DIR --data=FOLDER --workdir=runs/dream

The argument is swag (train.csv, val.csv), hellaswag (hellaswag_val_full.txt, a fifth of which becomes dev), dream
(dream_train.json, dream_dev.json, dream_test.json) or csqa (commonsenseqa_dev_rand_split.jsonl, a fifth of which
becomes dev). A row has one sequence for each choice, so C choices take as much memory as a batch C times as large.

A small model was no better than chance (tests/benchmarks/README.md). The paper trains for 3 epochs at a learning rate
of 2e-5 with batches of 16. Its accuracy on SWAG is 81.6 on dev (base), and 86.6 on dev and 86.3 on test (large).
"""

from ml_collections import ConfigDict

TASKS = {  # name -> (format, its options, splits, columns, share of train that becomes dev, max_length)
    "swag": (
        "delimited",
        {},
        {"train": "train.csv", "dev": "val.csv"},
        {"context": "sent1", "question": "sent2", "choices": ("ending0", "ending1", "ending2", "ending3")},
        0.0,
        128,
    ),
    "hellaswag": (  # a context, which begins with its activity; the number of the right ending; four endings
        "line_columns",
        {"num_lines": 6},
        {"train": "hellaswag_val_full.txt"},
        {"context": "0", "label": "1", "choices": ("2", "3", "4", "5")},
        0.2,
        160,
    ),
    "dream": (  # [turns of a dialogue, questions, id]
        "jsonl",
        {"field": "1"},
        {"train": "dream_train.json", "dev": "dream_dev.json", "test": "dream_test.json"},
        {"id": ("2", "number"), "context": "0", "choices": "choice", "label": "answer"},
        0.0,
        256,
    ),
    "csqa": (  # the context is the question itself
        "jsonl",
        {},
        {"train": "commonsenseqa_dev_rand_split.jsonl"},
        {"context": "question", "question": "question", "choices": "choices.text", "label": "answerKey"},
        0.2,
        64,
    ),
}


def get_config(name: str = "swag") -> ConfigDict:
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; there are {', '.join(TASKS)}")
    form, options, splits, columns, dev_fraction, max_length = TASKS[name]
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict({"name": "multiple_choice"})
    config.data = ConfigDict(
        {
            "format": form,
            "options": options,
            "splits": splits,
            "columns": columns,
            "strip_prefix": {"context": ".*?: "} if name == "hellaswag" else {},
            "dev_fraction": dev_fraction,
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 3.0, "batch_size": 16, "max_length": max_length}})
    config.schedule = ConfigDict({"peak_learning_rate": 2e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "accuracy"})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
