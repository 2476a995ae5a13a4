"""ModernBERT-base in a day on one H100: the three stages, shortened.

    bert-jax plan --config=modernbert_day --topology=v5e:2x4
    bert-jax pretrain --config=modernbert_day --workdir=runs/day \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

22e9 tokens in rows of 1,024 and 2e9 in rows of 8,192, then 2e9 more with a falling rate: 18 and 5.5 hours of steps,
without evaluations and saves, at the 340k and 203k tokens a second that were measured on an H100
(tests/benchmarks/README.md, 2026-11-26). ``plan`` says for other machines how long it takes and what memory it needs.
On more than eight devices give ``training.micro_batches`` a smaller number: 64 rows in 8 parts are 8 rows each.
Batches are smaller than the published ones, since the run has fewer steps; the rates are as in ``modernbert``. The
numbers of tokens are our choice.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("modernbert")
    long = config.phases.phase2
    first = ConfigDict({"num_tokens": 22_000_000_000, "batch_size": 512, "max_length": 1_024})
    config.phases = ConfigDict({"phase1": first, "phase2": long, "phase3": config.phases.phase3})
    for name in ("phase2", "phase3"):
        config.phases[name].update({"num_tokens": 2_000_000_000, "batch_size": 64})
    config.schedule.warmup_tokens = 500_000_000
    config.training.update({"eval_phase": "phase1", "eval_every_steps": 2_000, "micro_batches": 8})
    config.checkpoints = ConfigDict({"every_steps": 1_000, "keep": 3, "keep_every_steps": 10_000})
    return config
