"""Rows with the tokenizer of a GPT: text and the end token, or text alone; what needs [SEP] or [MASK] says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows.example_rows import pair_sequences
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.text.tokenizer import of_json
from tests.rows.fakes import VOCAB_SIZE, FakeSplit, fake_split
from tests.text.gpt_files import gpt, gpt2

END = 2
GPT2 = TokenFacts(pad=END, cls=-1, sep=-1, mask=-1, vocab_size=VOCAB_SIZE, special_ids=(END,), end=END)
GPT1 = TokenFacts(pad=0, cls=-1, sep=-1, mask=-1, vocab_size=VOCAB_SIZE, special_ids=(0,))
NO_MASKS = MaskingConfig(mask_share=0.0, random_share=0.0)


def rows_of(split: FakeSplit, facts: TokenFacts, blocks: str, packing: Any, length: int = 32) -> dict[str, np.ndarray]:
    options = {"blocks": blocks}
    config = RowsConfig(length, masking=NO_MASKS, arrangement="sentences", arrangement_options=options, packing=packing)
    source = SequenceRows(config, split, facts, seed=0)
    count = np.arange(source.rows_per_epoch)
    return source.rows(0 * count, count)


def sequences(rows: dict[str, np.ndarray]) -> list[list[int]]:
    """The tokens of each sequence, in the order of the text."""
    ids = rows.get("sequence_ids", rows["attention_mask"])
    found = [
        row[of == n].tolist() for row, of in zip(rows["input_ids"], ids, strict=True) for n in range(1, of.max() + 1)
    ]
    return sorted(found, key=lambda one: one[0])


@pytest.mark.parametrize("packing", ["none", "packed"])
@pytest.mark.parametrize("blocks", ["full", "document"])
@pytest.mark.parametrize("facts", [GPT2, GPT1], ids=["gpt2", "gpt"])
def test_every_token_is_in_a_row_once_with_the_end_token_after_it(facts: Any, blocks: str, packing: Any) -> None:
    split = fake_split(30, sentences=(1, 6), mean=4)  # fewer tokens than the vocabulary, so that each has its own id
    rows = rows_of(split, facts, blocks, packing)
    found = sequences(rows)
    assert max(map(len, found)) <= 32
    if facts is GPT2:
        assert all(one[-1] == END for one in found)
        assert (rows["input_ids"][rows["attention_mask"] == 0] == END).all()
        found = [one[:-1] for one in found]
    whole = [token for one in found for token in one if token != END]
    assert whole == split.tokens.tolist()
    inner = [one.count(END) for one in found]
    starts = {int(split.tokens[split.sentence_offsets[i]]) for i in split.document_starts[:-1]}
    if facts is GPT2 and blocks == "full":  # between two documents of a row, and nowhere else
        assert all(one[i + 1] in starts for one in found for i, token in enumerate(one) if token == END)
        assert sum(inner) == sum(token in starts for one in found for token in one[1:]) > 0
    else:
        assert not any(inner)
    if blocks == "document":
        assert not any(token in starts for one in found for token in one[1:])


def test_a_row_is_full_and_a_long_sentence_is_cut() -> None:
    split = FakeSplit([[70], [20, 11]])
    gpt2, gpt1 = (sequences(rows_of(split, facts, "document", "none")) for facts in (GPT2, GPT1))
    assert [len(one) for one in gpt2] == [32, 32, 9, 32]
    assert [len(one) for one in gpt1] == [32, 32, 6, 31]


def test_pairs_and_masks_are_refused_in_one_line() -> None:
    tokenizer = of_json(gpt2())
    with pytest.raises(UserError, match=r"^here.arrangement 'sentence_pairs' needs the token \[SEP\], .*set here.arr"):
        RowsConfig(32, masking=NO_MASKS).check_tokens(tokenizer, "here")
    with pytest.raises(
        UserError, match=r"^masking \(here.masking\) needs the token \[MASK\], which the tokenizer lacks"
    ):
        RowsConfig(32, arrangement="sentences").check_tokens(tokenizer, "here")
    RowsConfig(32, masking=NO_MASKS, arrangement="sentences").check_tokens(tokenizer, "here")


@pytest.mark.parametrize("form", [gpt2, gpt])
def test_labelled_texts_end_with_the_end_token(form: Any) -> None:
    tokenizer = of_json(form())
    after = list(tokenizer.around[1])
    notes: list[str] = []
    found = pair_sequences(tokenizer, ["the cat", "the cat the cat"], [None, None], 5, notes.append)
    wanted = [ids.tolist()[: 5 - len(after)] + after for ids in tokenizer.encode_batch(["the cat", "the cat the cat"])]
    assert [ids.tolist() for ids in found["input_ids"]] == wanted
    assert [types.tolist() for types in found["token_type_ids"]] == [[0] * len(ids) for ids in wanted]
    with pytest.raises(UserError, match=r"^a pair of texts needs the token \[SEP\], which the tokenizer lacks"):
        pair_sequences(tokenizer, ["a"], ["b"], 9)
