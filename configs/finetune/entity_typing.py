"""Predicts the types of an entity that a sentence mentions: Open Entity and FIGER, as ERNIE (THU) was fine-tuned.

    bert-jax finetune --config=entity_typing --init=DIR --data=FOLDER --workdir=runs/types
    bert-jax finetune --config=entity_typing:figer --init=DIR --data=FOLDER --workdir=runs/figer
    bert-jax finetune --config=entity_typing --init=runs/ernie_thu --data=FOLDER --workdir=runs/types_thu \\
        --config.task.entities=graph/vectors.npy --config.task.lexicon=graph/entities.tsv

FOLDER has train.json, dev.json and test.json in the form of thunlp/ERNIE: a list of ``{"sent", "start", "end",
"labels"}``, in characters. Sentences of your own have the same form, or other names for the columns:
``--config.data.columns.types=TYPES``. If the vocabulary lacks the mark of mentions, add it:
``--config.vocab.added="('。',)"``.

Batch, rate, epochs, length and mark are those of thunlp/ERNIE, but for FIGER, where batches of 2,048 are made of 32
micro-batches there. Zhang et al. 2019 report, for ERNIE, Open Entity: precision 78.42, recall 72.90, F1 75.56; FIGER:
accuracy 57.19, F1 over examples 76.51, F1 73.39. Where no type is above a half, the evaluation of FIGER there takes the
likeliest type; here no type is predicted.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes

DATA = {  # name -> (epochs, batch size, max_length, share of steps that warm up)
    "open_entity": (10.0, 16, 128, 0.1),
    "figer": (3.0, 2048, 256, 0.2),
}


def get_config(data: str = "open_entity") -> ConfigDict:
    if data not in DATA:
        raise ValueError(f"no data {data!r}; there are {', '.join(DATA)}")
    num_epochs, batch_size, max_length, warmup = DATA[data]
    config = recipes.derive("fewrel")
    config.task = ConfigDict({"name": "entity_typing"})
    config.data = ConfigDict(
        {
            "format": "jsonl",
            "options": {},
            "splits": {split: f"{split}.json" for split in ("train", "dev", "test")},
            "columns": {"text": "sent", "mention": ("start", "end"), "types": "labels"},
        }
    )
    config.phases.train = ConfigDict({"num_epochs": num_epochs, "batch_size": batch_size, "max_length": max_length})
    config.schedule.warmup_fraction = warmup
    config.selection = ConfigDict({"metric": "f1"})
    return config
