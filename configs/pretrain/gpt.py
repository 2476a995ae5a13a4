"""GPT, also called GPT-1 (Radford et al. 2018): the next token, from left to right, in rows of 512 positions.

    bert-jax pretrain --config=gpt --workdir=runs/gpt --config.vocab.path=path/to/openai-gpt \\
        --config.corpus.source=text_files --config.corpus.options.paths="('books/*.txt.gz',)"

The values are from section 4.1: 64 rows of 512 positions a batch, 100 epochs of BooksCorpus, a rate that rises from 0
to 2.5e-4 in 2,000 steps and falls to 0 by a cosine, Adam, weight decay 0.01 on all but biases and gains, dropout 0.1,
initial weights of deviation 0.02, a vocabulary of 40,000 merges (40,478 pieces in transformers). b2 and eps, 0.999 and
1e-8, and clipping at 1 are from openai/finetune-transformer-lm, train.py.

``config.vocab.path`` names the folder of the published vocab.json and merges.txt (or tokenizer.json): then each row is
text alone, as GPT-1 has no end token. Without a path, the run learns a byte-level BPE of as many pieces, in lower case,
with the special tokens of this package, and a row is ``<s> text </s>``.

Three things differ. Here a row holds whole sentences; there it is cut wherever 512 tokens end. Here initial weights are
drawn from a normal distribution cut at two standard deviations. Here entries of the sum of the embeddings are dropped
out; there rows of the table are.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("gpt2")
    config.vocab.size, config.vocab.lowercase = 40_478, True
    config.model = ConfigDict({"encoder": "gpt", "size": "base", "dtype": "bfloat16"})
    config.phases = ConfigDict({"pretraining": {"num_epochs": 100.0, "batch_size": 64, "max_length": 512}})
    config.optimizer = ConfigDict(
        {"name": "adamw", "b2": 0.999, "eps": 1e-8, "clip_norm": 1.0, "bias_correction": "standard"}
    )
    config.schedule = ConfigDict({"name": "cosine", "peak_learning_rate": 2.5e-4, "warmup_steps": 2_000})
    return config
