"""Fine-tunes on the tasks of GLUE together, with one encoder (MT-DNN, Liu et al. 2019, arXiv 1901.11504).

    bert-jax finetune --config=mt_dnn --init=DIR --data=GLUE --workdir=runs/mt_dnn
    bert-jax finetune --config=mt_dnn:rte+stsb+mrpc --init=DIR --data=GLUE --workdir=runs/three
    bert-jax finetune --config=glue:rte --init=runs/mt_dnn --learning_rate=2e-5 --data=GLUE --workdir=runs/rte

The argument chooses tasks of ``--config=glue``, whose folders GLUE holds; by default all but WNLI, as in the paper. The
last command is the second stage: encoder and pooler go on with one task alone.

Values are from the published code (namisan/mt-dnn, branch v0.1: train.py, scripts/run_mt_dnn.sh,
config/tasks_config.json, data_utils/label_map.py): Adamax without bias correction, 5e-5, 5 epochs, warm-up over a
tenth, clipping at 1, 512 tokens, dropout of the heads 0.1 (MNLI 0.3, CoLA 0.05), a stochastic answer network for the
classes of pairs; batches of 32 are of its README. That code also decays biases and layer norms, puts the hypothesis
before the premise, and leaves out training examples of more than 512 tokens. Here they do not decay, the order is that
of ``glue``, and what is too long is cut. It ranks the sentences of QNLI's first release, where a question has two:
``--config.tasks.qnli.task.name=ranking --config.tasks.qnli.task.positive=entailment``.

A batch has rows of one task, and an epoch every example of every task once. The published code can limit the others to
a multiple of one task's batches (``--config.mixing.main=mnli --config.mixing.ratio=0.5``). Stickland & Murray (2019)
give small tasks more (``--config.mixing.alpha=1.0 --config.mixing.alpha_end=0.2``).
"""

from ml_collections import ConfigDict

from bert_jax.recipes.recipes import derive

PAIRS = ("mnli", "qqp", "qnli", "mrpc", "rte")  # their classes are predicted by a stochastic answer network
TASKS = (*PAIRS, "sst2", "cola", "stsb")
DROPOUT = {"mnli": 0.3, "cola": 0.05}  # of the head; 0.1 of the others


def get_config(names: str = "+".join(TASKS)) -> ConfigDict:
    if unknown := [name for name in names.split("+") if name not in TASKS]:
        raise ValueError(f"no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    config = derive("glue")
    del config.task, config.data
    config.tasks = ConfigDict()
    for name in names.split("+"):
        one = derive(f"glue:{name}")
        one.task.dropout_rate = DROPOUT.get(name, 0.1)
        if name in PAIRS:
            one.task.name = "san_classification"
        config.tasks[name] = ConfigDict({"task": one.task, "data": one.data})
    config.mixing = ConfigDict()
    config.phases.train = ConfigDict({"num_epochs": 5.0, "batch_size": 32, "max_length": 512})
    config.optimizer = ConfigDict({"name": "adamax", "bias_correction": "none"})
    config.schedule = ConfigDict({"peak_learning_rate": 5e-5, "warmup_fraction": 0.1})
    config.selection.metric = "mean"
    return config
