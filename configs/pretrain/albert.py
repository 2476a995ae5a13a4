"""ALBERT-base (Lan et al. 2020): shared parameters for all layers, n-gram masks, and sentence-order prediction.

    bert-jax pretrain --config=albert --workdir=runs/albert \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

``albert:large``, ``albert:xlarge`` and ``albert:xxlarge`` are the other sizes. The values are from section 4.1:
125,000 steps of 4,096 rows of 512 positions, LAMB with a learning rate of 0.00176, n-grams of 1 to 3 words, one row in
ten shorter, 30,000 pieces of sentencepiece. Warm-up (3,125 steps), the shape of the schedule and the optimizer (no bias
correction, epsilon 1e-6, decay 0.01, clip 1) are from google-research/albert, run_pretraining.py and
optimization.py. There is no dropout, as in version 2 of the released models, whose base model was trained for 10
million steps and the larger models for 3 million. After 125,000 steps with dropout, the paper's base model reached F1
89.3 on SQuAD 1.1 and 81.6 on MNLI; xxlarge after 1.5 million steps reached 94.8 and 90.8 (README.md of
google-research/albert).

Three things differ from google-research/albert. Here a row holds as many pairs as fit (``packing``), which do not
attend to each other; there each row holds one pair and padding. Here a word begins at a space, an ideograph or a
punctuation mark; there also at every piece with a digit or a letter beyond a to z, but not at a piece of several
characters that begins with a mark, such as "'s". In fine-tuning, its classifiers drop out 10 % of their input; here a
model of this recipe drops out nothing: ``--config.task.dropout_rate=0.1`` does as there.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "base") -> ConfigDict:
    config = recipes.derive("bert_base")
    config.vocab = ConfigDict({"path": "", "kind": "unigram", "size": 30_000, "lowercase": True})
    config.objective = ConfigDict(
        {
            "name": "mlm_sop",
            "packing": "packed",
            "masking": {"strategy": "ngrams", "options": {"longest": 3}, "unit": "word"},
        }
    )
    config.model = ConfigDict({"encoder": "albert", "size": size, "dtype": "bfloat16"})
    config.phases = ConfigDict({"phase1": {"num_steps": 125_000, "batch_size": 4096, "max_length": 512}})
    config.optimizer = ConfigDict({"name": "lamb", "bias_correction": "none"})
    config.schedule = ConfigDict({"name": "linear_from_zero", "peak_learning_rate": 0.00176, "warmup_steps": 3_125})
    return config
