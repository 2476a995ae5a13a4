"""``python -m bert_jax <verb>``."""

import sys

from bert_jax.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
