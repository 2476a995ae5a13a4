"""SpanBERT (Joshi et al. 2020): spans of whole words are masked and also predicted from the tokens at their two sides.

    bert-jax pretrain --config=spanbert --workdir=runs/spanbert \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

The values are from the command in facebookresearch/SpanBERT, pretraining/README.md, for its large cased model:
2,400,000 steps of 32 x 4,096 tokens at length 512; Adam with epsilon 1e-8 and weight decay 0.01; a learning rate with a
peak of 1e-4 after 10,000 steps, then linear to 0; spans of at most 10 words with p = 0.2; the span-boundary objective
predicts the first 15 tokens of a span. Rows have one segment, not pairs. ``spanbert:base`` is the base model. In the
paper the large model reached F1 94.6 on SQuAD 1.1 and 88.7 on SQuAD 2.0.

Some things differ from that code. Here the short ends of documents share rows (``packing``) without attending to each
other; there they are padded. Here the number of predictions is BERT's: 15 % of a row including its special tokens,
rounded. There it is 15 % of the text alone, rounded up. Both give 77 of 512 and 19 of 128. Here a sentence that is
longer than a row is cut; there it is skipped. Here biases and layer norms are not decayed; there all parameters are.
Here initial weights are drawn from a normal distribution cut at two standard deviations; there it is not cut.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "large") -> ConfigDict:
    config = recipes.derive(f"bert_base:{size}")
    config.vocab = ConfigDict({"path": "", "size": 28_996, "lowercase": False})
    config.objective = ConfigDict(
        {
            "name": "span_boundary",
            "boundary_positions": 15,
            "arrangement": "sentences",
            "arrangement_options": {"blocks": "document"},
            "packing": "packed",
            "masking": {
                "strategy": "spans",
                "options": {"p": 0.2, "longest": 10},
                "unit": "word",
                "fates": "span",
                "random_pieces": "unigram",
            },
        }
    )
    config.phases = ConfigDict({"phase1": {"num_steps": 2_400_000, "batch_size": 256, "max_length": 512}})
    config.optimizer = ConfigDict({"name": "adamw", "eps": 1e-8, "bias_correction": "standard"})
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 1e-4, "warmup_steps": 10_000})
    return config
