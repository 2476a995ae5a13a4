"""Trains a small ModernBERT in minutes on one GPU, without any data besides this installation.

    bert-jax pretrain --config=modernbert_gpu --workdir=runs/gpu        # or, environment and all: make pretrain-gpu
    bert-jax plan --config=modernbert_gpu --topology=h100:1

The text is the text of ``quickstart``: the docstrings of the installed Python packages, 2 million tokens. The model has
8 layers x 512 and 30 million parameters, computes in bfloat16, and its attention is the kernel ``flash``. 30 % of the
tokens are predicted, the optimizer is Muon, and rows are packed.

On one H200 a run took 1 min 7 s where compiled programs were kept, 48 s of it for its steps: 18.2 ms and 1.65 million
tokens a second (2026-11-27). It reached a held-out loss of 2.437, where ``quickstart`` reaches 4.24 on two CPU cores.
More steps do not help with so little text: of 8,000 steps, step 2,500 had the least held-out loss, 2.471, and the last
3.006. So the result of a run is the evaluated step with the least held-out loss.

Text of your own: ``--config.corpus.source=text_files --config.corpus.options.paths='text/*.txt'``. A card without fast
bfloat16, such as a T4: ``--config.model.dtype=float32``.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("quickstart")  # text and vocabulary
    config.objective = ConfigDict(
        {"name": "mlm", "arrangement": "sentences", "packing": "packed", "masking": {"rate": 0.3}}
    )
    shape = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "mlp_dim": 1376, "max_length": 512}
    config.model = ConfigDict({"encoder": "modernbert", "dtype": "bfloat16", "global_theta": 10_000.0, **shape})

    # Optimization
    config.phases = ConfigDict({"phase1": {"num_steps": 2_500, "batch_size": 256, "max_length": 128}})
    config.optimizer = ConfigDict({"name": "muon", "weight_decay": 0.05})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 2e-3, "warmup_fraction": 0.06})
    config.selection = ConfigDict({"metric": "mlm_loss"})  # the result is the best evaluation's step

    # Logs, evaluations and saves: free to change on a restart. Held-out rows are masked at 15 %, as for BERT.
    config.training = ConfigDict(
        {"log_every_steps": 100, "eval_every_steps": 500, "eval_rows": 1024, "eval_masking": {"rate": 0.15}}
    )
    config.checkpoints = ConfigDict({"every_steps": 500})
    config.loader = ConfigDict({"num_workers": 4})
    return config
