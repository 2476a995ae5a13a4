"""XLNet (Yang et al. 2019): tokens are predicted in a random order, each with those before it in the order.

    bert-jax pretrain --config=xlnet --workdir=runs/xlnet \\
        --config.corpus.source=text_files --config.corpus.options.paths="('text/*.txt.gz',)"

"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config(size: str = "large") -> ConfigDict:
    config = recipes.derive("bert_base")
    config.model = ConfigDict({"encoder": "xlnet", "size": size, "dtype": "bfloat16"})
    return config
