"""The tokenizer against published tokenizers: BertTokenizerLegacy (Python) and transformers' BertTokenizer in Rust."""

import random
import tarfile
import unicodedata
from pathlib import Path

import pytest

from bert_jax.text.tokenizer import Tokenizer, load

pytestmark = pytest.mark.parity

VOCABULARIES = {"bert-base-uncased": True, "bert-base-cased": False, "bert-base-chinese": True}


def settled(c: str) -> bool:
    """Left out: what the published tokenizers treat differently among themselves (surrogates, private use, unassigned
    code points, characters newer than the Unicode 8 tables of the Rust library, a final capital sigma)."""
    category = unicodedata.category(c)
    return category not in ("Cs", "Co", "Cn") and category == unicodedata.ucd_3_2_0.category(c) and c != "Σ"


def random_strings(count: int) -> list[str]:
    rng = random.Random(11)
    ranges = [(0x20, 0x7E)] * 4 + [(0xA0, 0x24F), (0x300, 0x5FF), (0x2000, 0x30FF), (0x4E00, 0x9FFF), (0x0, 0xFFFF)]
    ranges += [(0x10000, 0x1FFFF), (0x20000, 0x2FA1F), (0x0, 0x1F)]
    strings = []
    for _ in range(count):
        pool = rng.choices(ranges, k=3)
        text = (" " if rng.random() < 0.15 else chr(rng.randint(*rng.choice(pool))) for _ in range(rng.randint(0, 80)))
        strings.append("".join(filter(settled, text)))
    return strings


def real_lines(folder: Path, count: int) -> list[str]:
    with tarfile.open(folder / "en_books.tar.xz") as archive:
        lines: list[str] = []
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                lines += [line for line in file.read(60_000).decode("utf-8", "ignore").splitlines() if line.strip()]
            if len(lines) > count:
                return lines[:count]
    return lines


@pytest.fixture(params=VOCABULARIES, ids=str)
def tokenizers_pair(request, shared_data):
    transformers = pytest.importorskip("transformers")
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    path = shared_data("vocab") / f"{request.param}-vocab.txt"
    lowercase = VOCABULARIES[request.param]
    ours = load(path, lowercase)
    python = legacy.BertTokenizerLegacy(str(path), do_lower_case=lowercase)
    rust = transformers.BertTokenizer(vocab=str(path), do_lower_case=lowercase)
    return ours, python, rust


def assert_same(ours: Tokenizer, published, texts: list[str]) -> None:
    encoded = [ids.tolist() for ids in ours.encode_batch(texts)]
    for text, mine in zip(texts, encoded, strict=True):
        theirs = published.convert_tokens_to_ids(published.tokenize(text))
        assert mine == theirs, text
    counted = [i for ids in encoded for i in ids]
    assert counted.count(ours.unk_id) < 0.6 * len(counted)  # the comparison has power


def test_random_unicode(tokenizers_pair):
    ours, python, rust = tokenizers_pair
    texts = random_strings(10_000)
    assert_same(ours, rust, texts)
    # The Python one composes characters (NFC) before anything else, the others do not.
    assert_same(ours, python, [unicodedata.normalize("NFC", text) for text in texts])


def test_real_text(tokenizers_pair, shared_data):
    ours, python, rust = tokenizers_pair
    texts = [line for line in real_lines(shared_data("en_books"), 3000) if all(map(settled, line))]
    assert len(texts) > 2000
    assert_same(ours, python, texts)
    assert_same(ours, rust, texts)


def test_pairs_with_special_tokens(tokenizers_pair):
    ours, _, rust = tokenizers_pair
    theirs = rust("I will watch [MASK] tonight.", "Will you?", padding="max_length", max_length=20, truncation=True)
    mine = ours.encode("I will watch [MASK] tonight.", "Will you?", max_length=20, special_tokens_in_text=True)
    assert list(mine.input_ids) == theirs["input_ids"]
    assert list(mine.token_type_ids) == theirs["token_type_ids"]
    assert list(mine.attention_mask) == theirs["attention_mask"]
