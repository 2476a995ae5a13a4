"""Patterns of wrong encodings: what they find, and what they leave alone."""

import pytest

from bert_jax.corpora.hits import text_hits


def encoding(text: str) -> dict[str, int]:
    return text_hits(text.encode())


GOOD = [
    "Été, où, ça, naïve, “quoted” — don’t; 20 °C, 5 m², €100, Mac™, 1ª, nº 5, SÃO PAULO, IRMÃ, Âge, «â», Café®.",
    "Hà Nội là thủ đô của nước Cộng hòa xã hội chủ nghĩa Việt Nam. ĐÂY LÀ CHỮ HOA ÂM.",
    "春天来了,河边的柳树长出了新的叶子。Вечером мы гуляли. Größe, Straße. Ελλάδα. العربية\ttab\r\nline\x0c",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_text_of_many_languages(text: str) -> None:
    assert set(encoding(text).values()) == {0}


@pytest.mark.parametrize("text", ["café", "naïve", "“yes”", "don’t", "für", "время", "天气", "thủ đô"])
@pytest.mark.parametrize("wrong", ["cp1252", "latin-1"])
def test_utf8_read_as_another_encoding(text: str, wrong: str) -> None:
    broken = text.encode().decode(wrong, "ignore")
    assert encoding(broken)["mojibake"] > 0
    assert encoding(text)["mojibake"] == 0


def test_what_the_tokenizer_would_drop() -> None:
    assert encoding("a\x00b\x1bc\x7fd\x85e\x99f\tg")["control_characters"] == 4
    assert encoding("a\ufffdb\ufffd")["replacement_characters"] == 2
    assert encoding("锟斤拷锟斤拷")["mojibake"] == 2


def test_counts_add_up() -> None:
    parts = ["a\ufffdb", "\x00", "cafÃ©", ""]
    total = text_hits(b"")
    for part in parts:
        total.update(text_hits(part.encode()))
    assert total == text_hits("\n".join(parts).encode())
    assert set(total.values()) == {1}
