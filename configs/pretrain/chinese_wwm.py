"""Chinese BERT-wwm (Cui et al. 2019, arXiv 1906.08101): the characters of a word are masked together.

    bert-jax pretrain --config=chinese_wwm --init=MODEL --workdir=runs/chinese_wwm \\
        --config.corpus.options.paths="('zh/*.txt.gz',)"

MODEL is a Chinese BERT: a workdir, or a directory written by Hugging Face transformers. Its vocabulary is used. Without
--init, the model (``--config.model.size=tiny``) and its vocabulary are learned from nothing (corpora/README.md). When
the corpus is built, a segmenter decides which characters form a word (the column "words"). It is jieba, from the extra
``segment``; the authors used LTP. Only masking reads this column: token ids and model do not depend on words.

Steps, batches and optimizer are from the table in ymcui/Chinese-BERT-wwm, README_EN.md: 100,000 steps of 2,560 rows
at length 128, then 100,000 steps of 384 rows at length 512, with LAMB, starting from Google's Chinese BERT. The table
gives no learning rate; BERT's is used, 1e-4 after 10,000 steps, with one schedule for both phases. On CMRC 2018 (dev)
the published model reached F1 85.6, and BERT 84.5.

One thing differs: here a row holds as many pairs as fit (``packing``), which do not attend to each other; there each
row holds one pair and padding.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "base") -> ConfigDict:
    config = recipes.derive(f"bert_base:{size}")
    config.vocab = ConfigDict({"path": "", "size": 21_128, "lowercase": True})
    config.corpus.options = ConfigDict({"paths": (), "language": "zh"})
    config.corpus.columns = ConfigDict({"words": {"annotator": "segmenter"}})
    config.objective.masking = ConfigDict({"strategy": "whole_unit", "unit": "words"})
    config.phases = ConfigDict(
        {
            "phase1": {"num_steps": 100_000, "batch_size": 2_560, "max_length": 128},
            "phase2": {"num_steps": 100_000, "batch_size": 384, "max_length": 512},
        }
    )
    config.optimizer = ConfigDict({"name": "lamb"})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 1e-4, "warmup_steps": 10_000})
    config.examples = ("中国的首都是北[MASK]。",)
    return config
