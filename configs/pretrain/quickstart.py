"""Trains a small BERT in minutes on two CPU cores, without any data besides this installation.

    bert-jax pretrain --config=quickstart --workdir=runs/quickstart      # or: make pretrain

The text is real English and needs no download: the docstrings of the installed Python packages. README.md has the
results of this recipe, with the machine and the date.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()

    # Text
    config.vocab = ConfigDict({"path": "", "size": 8192, "lowercase": True})
    config.corpus = ConfigDict({"path": "", "source": "docstrings", "options": {}, "heldout_fraction": 0.05})

    # Objective and model
    config.objective = ConfigDict({"name": "mlm_nsp", "packing": "packed"})
    # A wider initialisation than BERT's 0.02, no dropout and a high learning rate: training is short.
    config.model = ConfigDict(
        {
            "size": "tiny",
            "max_length": 128,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
            "initializer_range": 0.08,
        }
    )

    # Optimization. Short rows first, as in the paper: attention to neighbours is learned several times sooner on them.
    config.phases = ConfigDict(
        {
            "phase1": {"num_steps": 1300, "batch_size": 64, "max_length": 32},
            "phase2": {"num_steps": 1500, "batch_size": 32, "max_length": 128},
        }
    )
    # Muon needs two thirds of the positions that AdamW needs for these figures.
    config.optimizer = ConfigDict({"name": "muon", "weight_decay": 0.01})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 6e-3, "warmup_steps": 150})
    config.selection = ConfigDict({"metric": ""})  # "": the last step is the result, not the best evaluation's

    # Logs, evaluations and saves: free to change on a restart
    # Held-out rows always have the 128 positions of the last phase. Train rows have 32 until step 1300, so their loss
    # can be compared with the held-out loss only after that step (training.eval_phase chooses another phase's rows).
    config.training = ConfigDict({"log_every_steps": 25, "eval_every_steps": 700, "eval_rows": 1024})
    config.checkpoints = ConfigDict({"every_steps": 700})

    return config
