"""MASS (Song et al. 2019): a decoder writes the half of a text that the encoder does not see.

    bert-jax pretrain --config=mass --workdir=runs/mass \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

The values are from microsoft/MASS, MASS-summarization, README.md: 6 layers in the encoder and 6 in the decoder, 768
wide (``mass:middle`` is 1,024 wide), the uncased vocabulary of BERT; rows of 512 positions; Adam with b2 0.98 and eps
1e-6, weight decay 0.01, no clipping; a learning rate with a peak of 5e-4 after 10,000 of 125,000 updates, then linear
to 0. The released models had 4,096 rows an update (32 GPUs). Fine-tuned, the base model reached ROUGE-1 / 2 / L of
42.12 / 19.50 / 39.01 on CNN and Daily Mail, 38.73 / 19.71 / 35.96 on Gigaword.

Half of each text is one fragment, as in the paper (sections 3.2 and 4.4). The command of that README hides 15 %
instead, one fragment in each 64 tokens. A fragment is put at the start, at the end or elsewhere as in MASS-unsupNMT.
Other differences: here encoder and decoder share the embeddings of positions and their layer norm; there
each has its own. There 10 % of the values inside the feed-forward parts are dropped out too; here none. Here biases and
layer norms are not decayed; there all parameters are. Here initial weights are drawn from a normal distribution cut at
two standard deviations; there it is not cut.

With ``--init`` of a BERT, its layers begin the encoder, the decoder or both (``--config.model.init_parts``; Rothe et
al. 2020, arXiv 1907.12461). transformers has no class for the model of MASS, and for a BERT for generation, which is an
EncoderDecoderModel there, this package has no family: nothing is exported or read back.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "base") -> ConfigDict:
    config = recipes.derive("bert_base")
    masking = {"strategy": "fragment", "rate": 0.5}
    config.objective = ConfigDict({"name": "mass", "arrangement": "sentences", "masking": masking})
    config.model = ConfigDict({"encoder": "seq2seq", "size": size, "dtype": "bfloat16"})
    config.phases = ConfigDict({"phase1": {"num_steps": 125_000, "batch_size": 4_096, "max_length": 512}})
    config.optimizer = ConfigDict(
        {"name": "adamw", "b2": 0.98, "eps": 1e-6, "clip_norm": None, "bias_correction": "standard"}
    )
    config.schedule = ConfigDict({"name": "linear", "peak_learning_rate": 5e-4, "warmup_steps": 10_000})
    config.export = False
    config.examples = None  # a model that writes goes on with held-out text
    return config
