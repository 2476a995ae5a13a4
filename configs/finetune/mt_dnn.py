"""Fine-tunes on the tasks of GLUE together, with one encoder (MT-DNN, Liu et al. 2019, arXiv 1901.11504).

    bert-jax finetune --config=mt_dnn --init=DIR --data=GLUE --workdir=runs/mt_dnn
    bert-jax finetune --config=mt_dnn:rte+stsb+mrpc --init=DIR --data=GLUE --workdir=runs/three

The argument chooses tasks of ``--config=glue``, whose folders GLUE holds; by default all but WNLI, as in the paper. The
optimizer, its rate, the batches and the epochs are those of the published code (v0.1). The paper and that code classify
pairs with a stochastic answer network (``--config.tasks.rte.task.name=san_classification``).

A batch has rows of one task, and an epoch every example of every task once. The published code can limit the others to
a multiple of one task's batches (``--config.mixing.main=mnli --config.mixing.ratio=0.5``). Stickland & Murray (2019)
give small tasks more (``--config.mixing.alpha=1.0 --config.mixing.alpha_end=0.2``).
"""

from ml_collections import ConfigDict

from bert_jax.runs.recipes import derive

TASKS = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")


def get_config(names: str = "+".join(TASKS)) -> ConfigDict:
    config = ConfigDict()
    config.seed = 0

    # Tasks and data
    of_each = {name: derive(f"glue:{name}") for name in names.split("+")}
    config.tasks = ConfigDict({name: {"task": one.task, "data": one.data} for name, one in of_each.items()})
    config.mixing = ConfigDict()

    # Model: used without --init, from random initialisation, with a vocabulary learned from the texts
    config.model = ConfigDict({"size": "mini"})
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.weights = "pretrained"
    config.frozen = ()
    config.bilstm_layers = 0

    # Optimization
    config.phases = ConfigDict({"train": {"num_epochs": 5.0, "batch_size": 32, "max_length": 512}})
    config.packing = "bucketed"  # rows of like length share a batch
    config.optimizer = ConfigDict({"name": "adamax"})
    config.schedule = ConfigDict({"peak_learning_rate": 5e-5, "warmup_fraction": 0.1})
    config.selection = ConfigDict({"metric": "mean", "patience": None})

    # Layout, logs, evaluations and saves
    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})
    config.loader = ConfigDict({"num_workers": 0})
    config.training = ConfigDict({"evaluations_per_epoch": 1, "micro_batches": 1, "loggers": ("tensorboard",)})
    config.checkpoints = ConfigDict({"every_steps": None, "keep": 1})  # None: after each evaluation
    config.export = True
    return config
