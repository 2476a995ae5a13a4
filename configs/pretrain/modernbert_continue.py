"""Goes on from a ModernBERT on your own text, in rows of 1,024 tokens, to adapt it to a domain or a language.

    bert-jax pretrain --config=modernbert_continue --init=MODEL --workdir=runs/legal \\
        --config.corpus.options.paths='legal/*.txt'

MODEL is a Hugging Face directory or the workdir of a run; its architecture, vocabulary and bases of rotation are taken.
``modernbert_continue:replay`` mixes in general text; text and lengths are as in ``continue``, and 30 % of the tokens
are predicted, as in ModernBERT. The rate is 3e-4, as in its last stages, without a warm-up, and falls by
1 - sqrt over the last half of the steps. For longer documents: ``--config.phases.phase1.max_length=8192`` and a smaller
``batch_size``.

With another vocabulary (``--vocab=DIR``, a folder that ``bert-jax vocab`` made with this recipe), the vector of each
new piece begins at the mean of the vectors of the pieces into which the old vocabulary cuts it (configs/language.md).
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(text: str = "own") -> ConfigDict:
    config = recipes.derive(f"continue:{text}")
    config.vocab = ConfigDict({"path": "", "kind": "byte_bpe", "size": 50_368, "lowercase": False})
    config.objective.masking = ConfigDict({"rate": 0.3})
    config.phases.phase1.max_length = 1_024
    config.optimizer = ConfigDict({"name": "stable_adamw", "weight_decay": 1e-5 / 8e-4})
    config.schedule = ConfigDict(
        {
            "name": "warmup_stable_decay",
            "peak_learning_rate": 3e-4,
            "warmup_steps": 0,
            "decay_fraction": 0.5,
            "decay": "one_minus_sqrt",
        }
    )
    config.training.eval_masking = ConfigDict({"rate": 0.15})
    return config
