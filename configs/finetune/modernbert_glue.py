"""Fine-tunes a ModernBERT on a task of GLUE, with the settings of its published code by task.

    bert-jax finetune --config=modernbert_glue:rte --init=DIR --data=GLUE --workdir=runs/rte

The argument is a task of ``--config=glue``, whose folders GLUE holds, without wnli. Rates, decays, batches and epochs
are from AnswerDotAI/ModernBERT, src/evals/glue_jobs.py: AdamW with b2 0.98 and eps 1e-6; its decay, which the rate
does not multiply, is divided by the rate here. Its schedule is not taken: here the rate rises for 6 % of the steps and
then falls linearly to 0. Dropout is 0.1 on what attention adds, as in pretraining: configs of published models say 0,
since transformers has one rate for two places.

A document of up to 8,192 tokens is read whole:

    bert-jax finetune --config=classification --init=DIR --workdir=runs/long --config.data.splits.train=texts.csv \\
        --config.phases.train.max_length=4096 --config.phases.train.batch_size=8 --config.training.micro_batches=4

Rows of short texts may hold several of them (``--config.packing=packed``), which is faster with the same losses.
"""

from ml_collections import ConfigDict

from bert_jax.errors import UserError
from bert_jax.recipes.recipes import derive

SETTINGS = {  # task -> learning rate, decay, batch size, epochs
    "mnli": (5e-5, 1e-6, 64, 2.0),
    "rte": (1e-5, 1e-5, 16, 3.0),
    "qqp": (3e-5, 3e-6, 16, 5.0),
    "cola": (5e-5, 5e-6, 32, 10.0),
    "mrpc": (8e-5, 8e-6, 32, 10.0),
    "qnli": (1e-5, 1e-6, 16, 10.0),
    "sst2": (3e-5, 3e-6, 16, 3.0),
    "stsb": (3e-5, 3e-6, 32, 10.0),
}


def get_config(name: str = "sst2") -> ConfigDict:
    if name not in SETTINGS:
        raise UserError(f"no task {name!r}; there are {', '.join(SETTINGS)}")
    rate, decay, batch, epochs = SETTINGS[name]
    config = derive(f"glue:{name}")
    config.model = ConfigDict({"encoder": "modernbert", "size": "tiny", "attention_output_dropout_rate": 0.1})
    config.vocab = ConfigDict({"path": "", "kind": "byte_bpe", "size": 8192, "lowercase": False})
    config.phases.train.update({"num_epochs": epochs, "batch_size": batch})
    config.optimizer = ConfigDict({"name": "adamw", "b2": 0.98, "eps": 1e-6, "weight_decay": decay / rate})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": rate, "warmup_fraction": 0.06})
    return config
