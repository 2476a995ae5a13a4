"""Finds text that still has the tags of HTML, XML or WikiExtractor."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bert_jax.inspection.check import Check, grade, percent, ratio

# A closing tag; a tokenizer may put spaces between its parts. </s> and </unk> are signs of other tokenizers.
CLOSING = re.compile(r"< ?/ ?(?!s ?>|unk ?>)[a-z][\w-]{0,15} ?>", re.IGNORECASE)


def markup(texts: Sequence[str]) -> Check:
    """Check how many of the sampled sentences have a closing tag."""
    share = ratio(sum(CLOSING.search(text) is not None for text in texts), len(texts))
    return Check(
        "markup",
        grade(share, 0.005, 0.1),
        f"{percent(share)} of sentences have a closing tag, such as </p>",
        "take the text out of the HTML or XML first; of a wiki's dump --config.corpus.source=mediawiki does, and of"
        " WikiExtractor's files --config.corpus.source=text_files",
        {"share": share},
    )
