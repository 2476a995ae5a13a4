"""GPT-2 (Radford et al. 2019): the next token, from left to right, in rows of 1,024 positions.

    bert-jax pretrain --config=gpt2 --workdir=runs/gpt2 --config.vocab.path=path/to/gpt2 \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

``gpt2`` is the small model, ``gpt2:medium``, ``gpt2:large`` and ``gpt2:xl`` are the others; ``gpt2:tiny`` trains in
minutes on a small machine, with values of our own. The paper has the sizes
(table 2), 512 rows of 1,024 positions a batch (section 2.3) and a vocabulary of 50,257 pieces. The dropout of 0.1 is
from transformers, GPT2Config. The paper says neither steps nor rates. These are from karpathy/nanoGPT,
config/train_gpt2.py: 600,000 steps, Adam with b2 0.95, weight decay 0.1, clipping at 1, a warm-up of 2,000 steps to a
peak of 6e-4, then a cosine. The peaks of the larger sizes are the peaks of models of their size in GPT-3 (Brown et al.
2020, table 2.1): 3e-4, 2.5e-4, 2e-4.

``config.vocab.path`` names the folder of the published vocab.json and merges.txt (or tokenizer.json): then each row is
text and the end token, which stands between documents too. Without a path, the run learns a byte-level BPE of as many
pieces with the special tokens of this package, and a row is ``<s> text </s>``.

Four things differ. Here a row holds whole sentences; there it is cut wherever 1,024 tokens end. Here initial weights
are drawn from a normal distribution cut at two standard deviations; there it is not cut, and positions have a deviation
of 0.01. Here the cosine ends at 0; in nanoGPT at a tenth of the peak. nanoGPT has no dropout.
"""

from ml_collections import ConfigDict

from bert_jax.errors import UserError
from bert_jax.recipes import recipes

PEAKS = {"tiny": 3e-3, "small": 6e-4, "medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}


def get_config(size: str = "small") -> ConfigDict:
    if size not in PEAKS:
        raise UserError(f"no size {size!r}; there are {', '.join(PEAKS)}")
    config = recipes.derive("roberta")
    config.vocab.size = 50_257
    config.objective = ConfigDict({"name": "ltr", "arrangement": "sentences"})
    config.model = ConfigDict({"encoder": "gpt2", "size": size, "dtype": "bfloat16"})
    config.phases = ConfigDict({"pretraining": {"num_steps": 600_000, "batch_size": 512, "max_length": 1_024}})
    config.optimizer = ConfigDict(
        {"name": "adamw", "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0, "bias_correction": "standard"}
    )
    config.schedule = ConfigDict({"name": "cosine", "peak_learning_rate": PEAKS[size], "warmup_steps": 2_000})
    config.examples = ("The capital of France is", "He opened the door and")
    if size == "tiny":
        config.vocab.size, config.model.dtype = 8_000, "float32"
        config.phases.pretraining.update({"num_steps": 2_000, "batch_size": 32, "max_length": 128})
        config.schedule.warmup_steps = 200
        config.loader.num_workers = 0
        config.training.update({"log_every_steps": 50, "eval_every_steps": 200, "eval_rows": 512})
        config.checkpoints = ConfigDict({"every_steps": 200, "keep": 3})
    return config
