"""Learn a vocabulary, WordPiece, sentencepiece or byte-level BPE, from the corpus of a recipe."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_config
from bert_jax.configuration import build
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig, find_source, prepare_vocabulary
from bert_jax.corpora.source import text_of
from bert_jax.corpora.workplace import clean_up_parents
from bert_jax.errors import UserError
from bert_jax.program import program
from bert_jax.recipes import recipes
from bert_jax.recipes.key_names import is_finetuning


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--output",
        required=True,
        help="the vocab.txt to write; spiece.model for sentencepiece, tokenizer.json for byte_bpe",
    )
    parser.add_argument(
        "--init", metavar="MODEL", help="a model or vocabulary, to compare how many tokens it makes of the same text"
    )


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.inspection.fertility import compare_fertility, measure_fertility

    config, typed = arguments.config.to_dict(), recipes.typed_keys(arguments.overrides)
    vocab = build(VocabularyConfig, config.get("vocab", {}), "config.vocab")
    if is_finetuning(config) and not vocab.path:
        raise UserError(
            "this recipe is one for fine-tuning and names no corpus to learn a vocabulary from; "
            "choose one of configs/pretrain"
        )
    corpus = build(CorpusConfig, config.get("corpus", {}), "config.corpus")
    init = None
    if arguments.init:
        from bert_jax.interchange.tokenizer_files import tokenizer_of

        init = tokenizer_of(arguments.init)
    with clean_up_parents(arguments.output):
        tokenizer = prepare_vocabulary(vocab, corpus, arguments.output, print, typed)
    shortfall = (
        f", fewer than the {vocab.size:,} asked for: nothing else in the text is frequent enough"
        if tokenizer.size < vocab.size
        else ""
    )
    print(f"{tokenizer.size:,} pieces in {arguments.output}{f', a copy of {vocab.path}' if vocab.path else shortfall}")
    try:
        texts = text_of(find_source(corpus))
        found = measure_fertility(tokenizer, texts)
        print(f"fertility: {found}")
        if init:
            print(compare_fertility(found, measure_fertility(init, texts))[1])
    except UserError as error:  # a vocabulary that is only copied needs no text
        print(f"no fertility: {error}")
    print(f'next: {program()} tokenize --vocab={arguments.output} "some text"')
