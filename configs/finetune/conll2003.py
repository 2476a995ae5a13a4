"""Tags the named entities of CoNLL-2003, cased, from its files of columns (Devlin et al. 2019, section 5.3).

    bert-jax finetune --config=conll2003 --init=DIR --data=CONLL --workdir=runs/conll2003

CONLL is a folder with train.txt, valid.txt and test.txt, compressed or not; tags in IOB1 are converted to IOB2. The
model of --init should be cased. Without --init, the model in config.model is trained from random initialisation and
needs a higher learning rate (--learning_rate=5e-4).

``--config=conll2003:features`` is the feature-based approach of the paper's table 7: a BiLSTM on layers of an encoder
that is not trained; --init is needed. ``conll2003:last`` and so on are its six ways to take layers, in one table with

    bert-jax sweep --config=conll2003 --vary=variant=finetuned,embeddings,second_to_last,last,weighted_sum_last_four,\
concat_last_four,weighted_sum_all --init=DIR --data=CONLL --workdir=runs/table7

A seventh way, ``weighted_sum_with_embeddings``, is ELMo's, of all layers and the embeddings.

A BiLSTM processes one word after another, so make it smaller for a large model on a CPU (--config.task.lstm_size=128).

To read a prepared TFDS dataset instead, whose tags are numbers with names:

    --config.data.format=tfds_dataset --config.data.options.name=conll2003 --data= --config.data.columns.words=tokens
    --config.data.columns.tags=ner --config.data.splits="{'train': 'train', 'dev': 'dev', 'test': 'test'}"

tests/benchmarks/README.md has the scores that small models reached. The F1 scores in the paper, on dev and test, are
96.4 and 92.4 (base), 96.6 and 92.8 (large).
"""

from typing import get_args

from ml_collections import ConfigDict

from bert_jax.models.heads import Layers

FEATURES = {"name": "feature_tagging", "num_lstm_layers": 2}
TASKS = {  # approach -> (task, parts of the model that are not trained)
    "finetuned": ({"name": "tagging"}, ()),
    "features": (FEATURES | {"layers": "concat_last_four"}, ("encoder",)),
    **{layers: (FEATURES | {"layers": layers}, ("encoder",)) for layers in get_args(Layers)},
}


def get_config(approach: str = "finetuned") -> ConfigDict:
    if approach not in TASKS:
        raise ValueError(f"no approach {approach!r}; there are {', '.join(TASKS)}")
    task, frozen = TASKS[approach]
    config = ConfigDict()

    # Task and data
    config.task = ConfigDict(task)
    config.data = ConfigDict(
        {
            "format": "conll",
            "options": {"word_column": 0, "tag_column": -1},
            "splits": {"train": "train.txt", "dev": "valid.txt", "test": "test.txt"},
            "columns": {},
        }
    )

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": False})
    config.frozen = frozen

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 3.0, "batch_size": 32, "max_length": 128}})
    config.schedule = ConfigDict({"peak_learning_rate": 5e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "f1"})

    # Evaluations and logs
    config.training = ConfigDict({"evaluations_per_epoch": 1, "loggers": ("tensorboard",)})
    return config
