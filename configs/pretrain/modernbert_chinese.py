"""ModernBERT for Chinese, with whole words masked, first 30 % of the text and then 15 % (Zhao et al. 2025).

    bert-jax pretrain --config=modernbert_chinese --workdir=runs/chinese \\
        --config.corpus.source=text_files --config.corpus.options.paths="('zh/*.txt.gz',)"

Source: arXiv 2510.12285 (abstract): a vocabulary of 32,000 pieces, whole words, 30 % falling to 15 %, rows of 1,024 and
then 8,192. Everything else is as in ``modernbert``, whose sizes it takes (``modernbert_chinese:tiny``). The rate
falls with the stages: 30 % in the first, 22 % in the second, 15 % in the decay. There the learning rate follows a
damped cosine, and the vocabulary is a BPE; here characters are pieces, as in Chinese BERT. A segmenter, from the extra
``segment``, decides which characters form a word.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "base") -> ConfigDict:
    config = recipes.derive(f"modernbert:{size}")
    is_small = size in ("tiny", "small")
    config.vocab = ConfigDict({"path": "", "size": 8_000 if is_small else 32_000, "lowercase": True})
    config.corpus.options = ConfigDict({"paths": (), "language": "zh"})
    config.corpus.columns = ConfigDict({"words": {"annotator": "segmenter"}})
    config.objective.masking = ConfigDict({"strategy": "whole_unit", "unit": "words", "rate": 0.3})
    config.phases.phase2.masking = ConfigDict({"rate": 0.22})
    config.phases.phase3.masking = ConfigDict({"rate": 0.15})
    config.examples = ("中国的首都是北[MASK]。",)
    return config
