"""Left to right first, both sides after: next tokens, then masked tokens, in one run (arXiv 2507.00994).

    bert-jax pretrain --config=clm_mlm --workdir=runs/clm_mlm
    bert-jax ablate --config=clm_mlm --variants=mlm,clm_mlm --seeds=0,1,2 --workdir=runs/clm_or_mlm

Gisserot-Boukhlef et al. 2025 find this order the best at a fixed budget, with models of 210 million parameters and
more. Here model and text are the quickstart's, so that a run takes minutes on two CPU cores. ``clm_mlm:mlm`` has masked
tokens in both phases, ``clm_mlm:ltr`` next tokens: as many steps, and as many tokens. For a real model, set the same
``config.phases.*.objective`` in ``configs/pretrain/bert_base.py``.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes

# The objective of the run, and the keys of it that phase1 replaces.
VARIANTS = {"clm_mlm": ("mlm", {"name": "ltr"}), "mlm": ("mlm", {}), "ltr": ("ltr", {})}


def get_config(variant: str = "clm_mlm") -> ConfigDict:
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; choose one of: {', '.join(VARIANTS)}")
    config = recipes.derive("quickstart")
    name, first = VARIANTS[variant]
    config.objective = ConfigDict({"name": name, "arrangement": "sentences", "packing": "packed"})
    rows = {"batch_size": 64, "max_length": 32}
    config.phases = ConfigDict(
        {
            "phase1": {"num_steps": 500, **rows, "objective": first},
            "phase2": {"num_steps": 500, **rows},
        }
    )
    config.optimizer = ConfigDict({"name": "muon"})
    config.schedule.update(peak_learning_rate=3e-3, warmup_steps=100)
    config.training = ConfigDict({"log_every_steps": 50, "eval_every_steps": 500, "eval_rows": 1024})
    config.checkpoints = ConfigDict({"every_steps": 500, "keep": 1})
    return config
