"""XLNet (Yang et al. 2019, arXiv 1906.08237): tokens predicted in a random order, by a model with memory.

    bert-jax pretrain --config=xlnet --workdir=runs/xlnet \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

``xlnet`` is the large model; ``xlnet:base`` is smaller, and ``xlnet:tiny`` is for a laptop, with values of our
own. The values of the large model are from section A.4.1 of the paper: 500,000 steps of 8,192 rows of 512 positions;
Adam with eps 1e-6 and weight decay 0.01; a learning rate with a peak of 4e-4 after 40,000 steps, then linear to 0;
dropout 0.1; K = 6. These are from zihangdai/xlnet, README.md: the next row remembers the first 256 positions of a row,
orders are among 256 positions, 85 of a row are predicted, a cased vocabulary has 32,000 pieces. The command there has
2,048 rows a batch, not 8,192. Neither says how long the memory is; 384 is from notes on the paper's first version. The
paper has no base model of this data; here the base model has the values of the large one.

With another ``max_length``, change these keys too: ``config.objective.perm_size``, ``config.model.memory_length``, and
``config.objective.arrangement_options.reuse_length`` with ``config.model.reuse_length``, which are one number.

Four things differ. There half of the rows are read backwards. There the rate ends at a thousandth of its peak. There
n-grams are of pieces, not of words, by an error. Here initial weights are drawn from a normal distribution cut at two
standard deviations; there it is not cut. The large model reached 88.95 EM on SQuAD 1.1, 81.75 on RACE and 89.8 on MNLI
(README.md of that repository). It was trained on 33 billion pieces of text, on 512 TPU v3 chips for 5.5 days.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "large") -> ConfigDict:
    config = recipes.derive("bert_base")
    is_small = size == "tiny"
    length = 128 if is_small else 512
    config.vocab = ConfigDict(
        {"path": "", "kind": "unigram", "size": 8_000 if is_small else 32_000, "lowercase": False, "cls_last": True}
    )
    config.objective = ConfigDict(
        {
            "name": "permuted",
            "perm_size": length // 2,
            "arrangement": "stream_pairs",
            "arrangement_options": {"reuse_length": length // 2},
            "masking": {
                "strategy": "ngrams_in_context",
                "options": {"longest": 5, "context": 6},
                "rate": 1 / 6,
                "unit": "word",
            },
        }
    )
    memory = {"memory_length": 3 * length // 4, "reuse_length": length // 2}
    dtype = "float32" if is_small else "bfloat16"
    config.model = ConfigDict({"encoder": "xlnet", "size": size, "dtype": dtype, **memory})
    steps, rows, warmup, peak = (1_600, 32, 160, 1e-3) if is_small else (500_000, 8_192, 40_000, 4e-4)
    config.phases = ConfigDict({"phase1": {"num_steps": steps, "batch_size": rows, "max_length": length}})
    config.optimizer = ConfigDict({"name": "adamw", "eps": 1e-6, "weight_decay": 0.01, "bias_correction": "none"})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": peak, "warmup_steps": warmup})
    if is_small:
        config.corpus.heldout_fraction = 0.05
        config.loader.num_workers = 0
        config.training.update({"log_every_steps": 50, "eval_every_steps": 200, "eval_rows": 512})
        config.checkpoints = ConfigDict({"every_steps": 200, "keep": 3, "keep_every_steps": 400})
    return config
