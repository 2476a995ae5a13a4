"""Patterns of personal data and of wrong encodings: what they find, and what they leave alone."""

import pytest

from bert_jax.corpora.hits import add, text_hits


@pytest.mark.parametrize(
    ("text", "emails", "phones"),
    [
        ("Write to jane.doe+news@mail.example.co.uk or to j_d@x.org.", 2, 0),
        ("user@localhost, @handle, a @ b, @property, see foo@ bar.com", 0, 0),
        ("@example.com begins the text", 0, 0),
        ("Call (555) 123-4567 or 555-123-4567, or 555.123.4567; not 1555-123-45678.", 0, 3),
        ("Tel. +49 30 1234567, +1-800-555-0199 et 01 23 45 67 89.", 0, 3),
        ("电话13812345678。编号138123456789", 0, 1),
        ("In 1914-1918, pp. 123-456, ISBN 978-3-16-148410-0, 3.14159, 1,000,000, 10 000 000 people, 2026-11-21.", 0, 0),
        ("1 + 2 = 3; x+0; 192.168.001.0001; 00 11 22 33 44 55 66 77", 0, 0),
        ("", 0, 0),
    ],
)
def test_private_hits(text: str, emails: int, phones: int) -> None:
    assert text_hits(text.encode())["private"] == {"e-mail": emails, "phone": phones}


def encoding(text: str) -> dict[str, int]:
    return text_hits(text.encode())["encoding"]


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
    parts = ["a@b.org", "(555) 123-4567", "cafÃ©", ""]
    total = text_hits(b"")
    for part in parts:
        total = add(total, text_hits(part.encode()))
    assert total == text_hits("\n".join(parts).encode())
    assert total["private"] == {"e-mail": 1, "phone": 1}
