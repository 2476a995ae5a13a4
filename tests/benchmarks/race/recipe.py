"""Our sides of the race: ``recipe.py:modernbert`` and ``recipe.py:bert``; with ``_tiny`` for a trial on a CPU."""

from ml_collections import ConfigDict

SHAPE = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "max_length": 512}
TINY = {"hidden_size": 64, "num_layers": 1, "num_heads": 1, "max_length": 512}
LENGTH, ROWS, TINY_ROWS, RATE = 128, 256, 8, 0.15


def get_config(name: str = "modernbert") -> ConfigDict:
    encoder, tiny = name.removesuffix("_tiny"), name.endswith("_tiny")
    modern, shape = encoder == "modernbert", TINY if tiny else SHAPE
    config = ConfigDict()
    config.vocab = ConfigDict({"path": "", "size": 30_522, "lowercase": True})
    config.corpus = ConfigDict(
        {"path": "", "source": "docstrings", "options": {}, "heldout_fraction": 0.2 if tiny else 0.03}
    )
    masking = {"rate": 0.3 if modern else RATE}
    config.objective = ConfigDict({"name": "mlm", "arrangement": "sentences", "packing": "packed", "masking": masking})
    kind = {"mlp_dim": 1376, "global_theta": 10_000.0} if modern else {"mlp_dim": 4 * shape["hidden_size"]}
    config.model = ConfigDict({"encoder": encoder, "dtype": "float32" if tiny else "bfloat16", **shape, **kind})
    rows = TINY_ROWS if tiny else ROWS
    config.phases = ConfigDict({"phase1": {"num_steps": 3_000, "batch_size": rows, "max_length": LENGTH}})
    config.optimizer = ConfigDict({"name": "muon", "weight_decay": 0.05})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 2e-3, "warmup_fraction": 0.06})
    config.selection = ConfigDict({"metric": ""})
    config.training = ConfigDict({"log_every_steps": 10 if tiny else 50, "eval_every_steps": 1_000_000, "loggers": ()})
    config.training.update({"eval_rows": 64 if tiny else 2048, "eval_masking": ConfigDict({"rate": RATE})})
    config.checkpoints = ConfigDict({"every_steps": 1_000_000, "keep": 1})
    config.loader = ConfigDict({"num_workers": 0 if tiny else 8})
    return config
