"""Four small encoders on the same rows: bert and modernbert, electra_mlm and electra (replaced tokens); a recipe.

    bert-jax pretrain --config=tests/benchmarks/tiny_encoders.py:modernbert \\
        --config.vocab.path=VOCAB --config.corpus.path=CORPUS --config.seed=0 --workdir=DIR

4 layers x 256, rows of 32 and then of 128, packed. ``bert`` and ``modernbert`` have the same number of parameters to
1 %; both mask 30 %. How many steps of ``electra`` last as long as those of ``electra_mlm`` depends on sizes and device.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes

SHAPE = {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "max_length": 128, "initializer_range": 0.04}
NO_DROPOUT = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
ELECTRA = {"encoder": "electra", "embedding_size": 128, "mlp_dim": 1024}
ROTARY = {"global_theta": 10_000.0, "max_length": 4_096, "attention_output_dropout_rate": 0.0}
MASKED = {"name": "mlm", "masking": {"rate": 0.3}}
# Keys of the model, objective, steps of each of the two phases.
RUNS = {
    "bert": ({"encoder": "bert", "mlp_dim": 1024}, MASKED, 1_500),
    "modernbert": ({"encoder": "modernbert", "mlp_dim": 688, **ROTARY}, MASKED, 1_500),
    "electra_mlm": (ELECTRA, {"name": "mlm"}, 1_500),
    "electra": (
        ELECTRA,
        {"name": "replaced_tokens", "masking": {"mask_share": 0.85, "random_share": 0.0}},
        1_500,
    ),
}


def get_config(name: str = "bert") -> ConfigDict:
    model, objective, steps = RUNS[name]
    config = recipes.derive("ablation:no_nsp")
    config.objective = ConfigDict({"arrangement": "sentences", "packing": "packed", **objective})
    config.model = ConfigDict({**SHAPE, **NO_DROPOUT, "dtype": "bfloat16", **model})
    config.phases = ConfigDict(
        {
            "phase1": {"num_steps": steps, "batch_size": 128, "max_length": 32},
            "phase2": {"num_steps": steps, "batch_size": 64, "max_length": 128},
        }
    )
    if name == "modernbert":  # rows of 128 are short too
        config.phases.phase2.model = {"global_theta": ROTARY["global_theta"]}
    config.optimizer = ConfigDict({"name": "adamw", "bias_correction": "standard"})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 1e-3, "warmup_fraction": 0.1})
    config.training = ConfigDict({"log_every_steps": 250, "eval_every_steps": 1_000_000, "loggers": ()})
    config.checkpoints = ConfigDict({"every_steps": 1_000_000, "keep": 1})
    return config
