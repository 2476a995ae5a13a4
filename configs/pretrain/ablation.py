"""Small versions of the paper's ablations (Devlin et al. 2019, section 5.1, tables 5 and 8), and of later ones.

    bert-jax ablate --config=ablation --variants=bert,no_nsp,ltr_no_nsp --seeds=0,1,2 --workdir=runs/ablation
    bert-jax pretrain --config=configs/pretrain/ablation.py:no_nsp --workdir=runs/no_nsp

A run takes minutes on two CPU cores. The text is the quickstart's.
For the paper's own scale, set the same keys of ``config.objective`` in ``configs/pretrain/bert_base.py``.
tests/benchmarks/paper.md has each question with its command and its answer.
"""

from ml_collections import ConfigDict

RATES = (10, 15, 20, 30, 40, 50, 60)  # per cent of the tokens that are predicted
# The keys of ``config.objective`` that each variant changes.
VARIANTS = {
    "bert": {},
    "no_nsp": {"name": "mlm"},
    "ltr_no_nsp": {"name": "ltr"},
    # Sentence order in place of the next sentence (ALBERT); rows full of sentences, without pairs (RoBERTa).
    "sop": {"name": "mlm_sop"},
    "full_sentences": {"name": "mlm", "arrangement": "sentences"},
    # Wettig et al. 2022 (arXiv 2202.08005): the rate alone, and where all predicted tokens become [MASK].
    **{f"mask_{rate}": {"masking": {"rate": rate / 100}} for rate in RATES},
    **{f"all_mask_{rate}": {"masking": {"rate": rate / 100, "mask_share": 1.0, "random_share": 0.0}} for rate in RATES},
    # Table 8: per cent of the predicted tokens that become [MASK], are kept, become random.
    "mix_80_10_10": {"masking": {"mask_share": 0.8, "random_share": 0.1}},
    "mix_100_0_0": {"masking": {"mask_share": 1.0, "random_share": 0.0}},
    "mix_80_0_20": {"masking": {"mask_share": 0.8, "random_share": 0.2}},
    "mix_80_20_0": {"masking": {"mask_share": 0.8, "random_share": 0.0}},
    "mix_0_20_80": {"masking": {"mask_share": 0.0, "random_share": 0.8}},
    "mix_0_0_100": {"masking": {"mask_share": 0.0, "random_share": 1.0}},
    # Section 3.1: a denoising auto-encoder predicts the whole text, BERT the masked words alone. Compare with no_nsp.
    "reconstruct_all": {"name": "reconstruction"},
    # Recurrence in the place of attention: 4 layers of an LSTM have as many weights as 2 of BERT. Compare with bert.
    "lstm": {},
}


def get_config(variant: str = "bert") -> ConfigDict:
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; choose one of: {', '.join(VARIANTS)}")
    config = ConfigDict()

    # Text
    config.vocab = ConfigDict({"path": "", "size": 4096, "lowercase": True})
    config.corpus = ConfigDict({"path": "", "source": "docstrings", "options": {}, "heldout_fraction": 0.05})

    # Objective and model
    config.objective = ConfigDict({"name": "mlm_nsp", "packing": "packed", **VARIANTS[variant]})
    config.model = ConfigDict(
        {
            "size": "tiny",
            "max_length": 64,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
            "initializer_range": 0.08,
        }
    )

    if variant == "lstm":
        config.model.encoder = "lstm"
        del config.model.attention_dropout_rate

    # Optimization. Muon needs far fewer steps than AdamW until a model does better than the frequencies of the tokens.
    config.phases = ConfigDict(
        {
            "phase1": {"num_steps": 800, "batch_size": 64, "max_length": 32},
            "phase2": {"num_steps": 400, "batch_size": 32, "max_length": 64},
        }
    )
    config.optimizer = ConfigDict({"name": "muon"})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 3e-3, "warmup_steps": 100})
    config.selection = ConfigDict({"metric": ""})  # "": the last step is the result, not the best evaluation's

    # Logs, evaluations and saves: free to change on a restart
    config.training = ConfigDict({"log_every_steps": 50, "eval_every_steps": 400, "eval_rows": 2048})
    config.checkpoints = ConfigDict({"every_steps": 400, "keep": 1})
    config.export = False  # ablations make a table; their models are not needed
    config.examples = ()
    return config
