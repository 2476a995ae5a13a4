"""Codes of languages, and the error for a word that is not one."""

import pytest
import sentencex

from bert_jax.corpora.prepare import CorpusConfig, find_source
from bert_jax.errors import UserError
from bert_jax.text.languages import CODES


def test_the_codes() -> None:
    assert len(CODES) == 185
    assert all(len(code) == 2 and code.islower() and name[0].isupper() for code, name in CODES.items())
    assert all(sentencex.segment(code, "One. Two.") for code in CODES)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("english", r"'english'; did you mean 'en' \(English\)\? an ISO 639-1 code of two letters is needed"),
        ("zh-cn", r"'zh-cn'; did you mean 'zh' \(Chinese\)\?"),
        ("xx", "'xx'; .*an ISO 639-1 code of two letters is needed, such as 'en' or 'zh'"),
        ("", "''; an ISO 639-1 code"),
    ],
)
def test_what_is_none_is_refused(found: str, said: str) -> None:
    options = {"paths": ("a.txt",), "language": found}
    with pytest.raises(UserError, match=f"config.corpus.options.language is {said}"):
        find_source(CorpusConfig(source="text_files", options=options))
