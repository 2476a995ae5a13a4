"""Chooses among the answers to a question, or the continuations of a text, from a file of your own.

    bert-jax finetune --config=multiple_choice --init=MODEL --workdir=runs/choices \\
        --config.data.splits.train=train.jsonl
    bert-jax predict --workdir=runs/choices --input=new.jsonl

A row of the file (JSON, CSV or TSV) has the columns context, question (if any), choices and label: the index of the
right choice from 0, its letter or its text. Others are named, such as ``--config.data.columns.context=passage``;
choices in columns of their own are ``--config.data.columns.choices="('a', 'b', 'c')"``.

``multiple_choice:swag`` has the columns of SWAG: sent1, sent2, ending0 to ending3 and label. ``multiple_choice:c3``
reads the JSON of C3 and DREAM: [[lines of a passage], [{"question", "choice", "answer"}], id]. A row has a sequence for
each choice, so C choices take as much memory as a batch C times as large. All else is as in ``classification``.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes

FORMS = {  # form -> (format, its options, columns)
    "table": ("table", {}, {}),
    "swag": (
        "table",
        {},
        {"context": "sent1", "question": "sent2", "choices": ("ending0", "ending1", "ending2", "ending3")},
    ),
    "c3": (
        "jsonl",
        {"field": "1"},
        {"id": ("2", "number"), "context": "0", "choices": "choice", "label": "answer"},
    ),
}


def get_config(form: str = "table") -> ConfigDict:
    if form not in FORMS:
        raise ValueError(f"no form {form!r}; there are {', '.join(FORMS)}")
    config = recipes.derive("classification")
    config.task = ConfigDict({"name": "multiple_choice"})
    name, options, columns = FORMS[form]
    config.data.format = name
    config.data.options = ConfigDict(options)
    config.data.columns = ConfigDict(columns)
    config.phases.train.batch_size = 16
    config.phases.train.max_length = 256
    return config
