"""Fine-tunes a small model with a teacher of the same task, as DistilBERT on SQuAD 1.1 (Sanh et al. 2019, section 4.1).

    bert-jax finetune --config=distil --init=DISTILBERT --config.teacher.init=runs/squad --data=SQUAD \\
        --workdir=runs/distil_squad

The teacher is a finished run of the same task and labels (``bert-jax finetune --config=squad:v1 --init=BERT``), or its
export, with the vocabulary of the model that is trained. The argument is any other recipe for fine-tuning:

    bert-jax finetune --config=distil:glue:sst2 --init=DISTILBERT --config.teacher.init=runs/sst2 \\
        --data=GLUE --workdir=runs/distil_sst2

The loss is half the loss of the labels and half the loss of soft targets at temperature 2, the defaults of
run_squad_w_distillation.py (huggingface/transformers, examples/research_projects/distillation); all other values are
those of the recipe in the argument. README.md there gives F1 86.9 on SQuAD 1.1 (development set) for DistilBERT after
this second distillation, and 88.5 for BERT-base; the paper, table 2, 85.8 without it.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(recipe: str = "squad:v1") -> ConfigDict:
    config = recipes.derive(recipe)
    config.teacher = ConfigDict({"init": "", "labels": 0.5, "soft": {"weight": 0.5, "temperature": 2.0}})
    return config
