"""UniLM (Dong et al. 2019, arXiv 1905.03197): one BERT learns from both sides, from one side, and from a source.

    bert-jax pretrain --config=unilm --init=path/to/bert-large-cased --workdir=runs/unilm \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

``unilm:base`` has the size of BERT-base. Of the batches, 1/3 are from both sides, with next sentences, 1/3 from a
source to a target, 1/6 from left to right, 1/6 from right to left. 15 % of the tokens are masked, 80/10/10; of the
draws, 80 % are single tokens and 20 % bigrams or trigrams. Rows have 512 positions, the vocabulary 28,996 cased pieces,
and the model begins as BERT-large: its two token types become six. A public summary of the paper has these numbers; the
paper itself was not compared. Here bigrams and trigrams are equally many.

Less sure are these numbers, from notes on the paper: 770,000 steps of 330 rows, a peak learning rate of 3e-5 after
40,000 steps, Adam with 0.9 and 0.999, a weight decay of 0.01, dropout 0.1. 330 rows do not divide by 8 devices, so the
batch has 328.

Three things differ. There a batch is said to hold all directions, and here each batch is of one. Here rows are packed
with several pairs, which do not see each other. And in all members but ``both_sides`` the
second segment follows the first in the text (``random_share``); next sentences alone need random second segments.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes

SHARES = {"both sides": 2, "sequence to sequence": 2, "left to right": 1, "right to left": 1}


def get_config(size: str = "large") -> ConfigDict:
    config = recipes.derive(f"bert_base:{size}")
    config.vocab = ConfigDict({"path": "", "size": 28_996, "lowercase": False})
    config.model.type_vocab_size = 6
    members = {
        direction.replace(" ", "_"): {"name": "unilm", "direction": direction, "share": share}
        for direction, share in SHARES.items()
    }
    for name in members.keys() - {"both_sides"}:
        members[name]["arrangement_options"] = {"random_share": 0.0}
    masking = {"strategy": "ngrams", "options": {"longest": 3, "shares": (0.8, 0.1, 0.1)}}
    config.objective = ConfigDict({"packing": "packed", "masking": masking, "members": members})
    config.phases = ConfigDict({"phase1": {"num_steps": 770_000, "batch_size": 328, "max_length": 512}})
    config.schedule.update(peak_learning_rate=3e-5, warmup_steps=40_000)
    return config
