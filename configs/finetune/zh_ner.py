"""Tags named entities in Chinese text, where every character is a word.

    bert-jax finetune --config=zh_ner:weibo --init=DIR --data=FOLDER --workdir=runs/weibo

The argument is peopledaily (peopledaily/train.txt, dev.txt), weibo (weibo/weiboNER_2nd_conll.train, .dev, .test) or
cluener (cluener/train.json, dev.json, test.json), compressed or not. People's Daily is the text of MSRA with other
splits. Never train on MSRA and evaluate on peopledaily/dev: nearly all sentences of peopledaily/dev are in MSRA.

tests/benchmarks/README.md has the scores that a small model reached.
"""

from ml_collections import ConfigDict

TASKS = {  # name -> (format, options, splits, max_length)
    "peopledaily": ("conll", {}, {"train": "peopledaily/train.txt", "dev": "peopledaily/dev.txt"}, 128),
    "weibo": (
        "conll",
        {"segmentation_digit": True},
        {split: f"weibo/weiboNER_2nd_conll.{split}" for split in ("train", "dev", "test")},
        192,
    ),
    "cluener": ("character_spans", {}, {split: f"cluener/{split}.json" for split in ("train", "dev", "test")}, 64),
}


def get_config(name: str = "peopledaily") -> ConfigDict:
    if name not in TASKS:
        raise ValueError(f"no data {name!r}; there are {', '.join(TASKS)}")
    form, options, splits, max_length = TASKS[name]
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict({"name": "tagging"})
    config.data = ConfigDict({"format": form, "options": options, "splits": splits, "columns": {}})

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.frozen = ()

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 3.0, "batch_size": 32, "max_length": max_length}})
    config.schedule = ConfigDict({"peak_learning_rate": 5e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "f1"})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
