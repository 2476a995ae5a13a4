"""ERNIE 2.0 (Sun et al. 2020, arXiv 1907.12412): pretraining tasks that come stage by stage, and stay.

    bert-jax pretrain --config=ernie2 --workdir=runs/ernie2 --config.corpus.source=text_files \\
        --config.corpus.options.paths="('text/*.txt.gz',)" --config.corpus.columns.phrases.path=phrases.txt

Each line of phrases.txt is a phrase or a name, and a token outside of phrases is a unit by itself. Stage 1 has masked
phrases, stage 2 capital letters too, stage 3 whether a token occurs elsewhere in its document too, stage 4 the order of
shuffled pieces of a paragraph too. Each batch is of one task, and each token has the embedding of that task.

``ernie2:sequential`` has one task after another, ``ernie2:joint`` all tasks from the first step on: as many steps, and
as many of each task. ``ernie2:tiny``, ``ernie2:tiny_sequential`` and ``ernie2:tiny_joint`` run in minutes on two CPU
cores, on the text of ``quickstart`` (docstrings of the installed packages), with values of our own.

The steps of the four tasks in the four stages are from the paper's table on continual learning. These values were taken
from notes and not compared with the paper: 393,216 tokens a batch, a peak learning rate of 5e-5, the decay of the
Transformer with 4,000 steps of warm-up in each stage, and Adam with 0.9 and 0.98. The model is BERT-base with 4 token
types and 16 tasks, which has 109,496,064 parameters.

The published English model has learned discourse relations too (``objectives/discourse.py``). The Chinese model, at a
rate of 1.28e-4, has learned sentence distance, discourse relations and relevance in place of capitals and of token and
document. How many steps each task had is not published. For capitals, and for token and document, there is no public
code. Three things differ from the code that there is. There the rows of the sentence tasks have masked words too. There
a row holds one text and padding, and here as many texts as fit (``packing``). There the bias of the layer norm in the
head for masked words begins at 1; here it begins at 0, as in BERT and in the code of ERNIE 1.0.
"""

from typing import Any

from ml_collections import ConfigDict

from bert_jax.recipes import recipes, stages

OBJECTIVES = {
    "masking": "mlm",
    "capitals": "capitals",
    "token_document": "token_document",
    "reordering": "sentence_reordering",
}
# Thousands of steps in each stage.
ALLOCATION = {
    "masking": (20, 10, 10, 10),
    "capitals": (0, 30, 10, 10),
    "token_document": (0, 0, 40, 10),
    "reordering": (0, 0, 0, 50),
}


def get_config(variant: str = "continual") -> ConfigDict:
    size, _, of_tiny = variant.partition("_")
    is_tiny = size == "tiny"
    schedule = (of_tiny or "continual") if is_tiny else variant
    unit, rows, length, peak, warmup = (8, 64, 64, 6e-3, 40) if is_tiny else (1_000, 768, 512, 5e-5, 4_000)
    config = recipes.derive("quickstart" if is_tiny else "bert_base")
    config.corpus.columns = ConfigDict({"capitals": {"annotator": "capitals"}})
    if not is_tiny:
        config.corpus.columns.phrases = ConfigDict({"annotator": "lexicon", "path": "", "ignore_case": True})
        config.model = ConfigDict({"size": "base", "activation": "gelu", "dtype": "bfloat16"})
        config.optimizer = ConfigDict({"name": "adamw", "b2": 0.98, "bias_correction": "standard"})
    config.model.update({"encoder": "ernie", "type_vocab_size": 4, "task_type_vocab_size": 16})
    config.objective = ConfigDict({"name": "mlm", "packing": "packed"})  # all tasks are packed
    tasks: dict[str, Any] = {task: {"name": name} for task, name in OBJECTIVES.items()}
    masking = {"strategy": "bernoulli", "unit": "word" if is_tiny else "phrases"}
    tasks["masking"] |= {"arrangement": "sentences", "masking": masking}
    rate = {"name": "inverse_sqrt", "peak_learning_rate": peak, "warmup_steps": warmup}
    steps = {task: tuple(unit * count for count in row) for task, row in ALLOCATION.items()}
    of_stage = {"batch_size": rows, "max_length": length, "schedule": rate}
    config.phases = stages.phases(schedule, steps, tasks, of_stage)
    config.schedule = ConfigDict(rate)
    config.training.eval_phase = "stage1" if schedule == "sequential" else None  # what is left of the first task
    return config
