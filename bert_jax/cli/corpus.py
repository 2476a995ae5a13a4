"""Build the tokenized store of a recipe's corpus (config.vocab.path: the vocabulary), or check a store (--verify)."""

from __future__ import annotations

import argparse
import shlex
import sys
import time

from bert_jax import configuration
from bert_jax.cli.flags import add_config
from bert_jax.cluster import exit_codes
from bert_jax.corpora.manifest import verify
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig, prepare_corpus
from bert_jax.corpora.workplace import clean_up_parents
from bert_jax.errors import UserError
from bert_jax.program import program
from bert_jax.recipes import recipes
from bert_jax.recipes.key_names import is_finetuning


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, required=False)
    parser.add_argument("--output", help="the new folder to write")
    parser.add_argument("--private", action="store_true", help="keep text and paths out of the manifest")
    parser.add_argument(
        "--verify", metavar="DIR", help="build nothing: read all files of the store DIR and name the damaged files"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.verify is not None:
        if arguments.config is not None or arguments.output is not None or arguments.private:
            raise UserError("--verify=DIR builds nothing; leave out --config, --output and --private")
        return _print_damage(arguments.verify)
    if arguments.config is None or arguments.output is None:
        raise UserError("give --config=RECIPE and --output=DIR to build a store, or --verify=DIR to check one")
    _build(arguments)
    return exit_codes.DONE


def _print_damage(store: str) -> int:
    """Check the files of ``store`` and print a line for each damaged file; return the exit code."""
    found = damaged = 0
    for _, finding in verify(store):
        found += 1
        if finding is not None:
            damaged += 1
            print(finding)
    print(f"{store}: {found} files, {f'{damaged} damaged' if damaged else 'all as they were written'}")
    return exit_codes.CRASHED if damaged else exit_codes.DONE


def _build(arguments: argparse.Namespace) -> None:
    config = arguments.config.to_dict()
    if is_finetuning(config):
        raise UserError("this recipe is one for fine-tuning and names no corpus; choose one of configs/pretrain")
    private = arguments.private or config.get("private", False)
    vocab = configuration.build(VocabularyConfig, config.get("vocab", {}), "config.vocab")
    tokenizer = vocab.load_tokenizer(typed=recipes.typed_keys(arguments.overrides))
    progress = _show if sys.stderr.isatty() else lambda *counts: None
    if tokenizer is None:
        raise UserError(
            "config.vocab.path is empty; learn a vocabulary with `bert-jax vocab --config=RECIPE --output=vocab.txt`, "
            "then add --config.vocab.path=vocab.txt"
        )
    corpus = configuration.build(CorpusConfig, config.get("corpus", {}), "config.corpus")
    start = time.monotonic()
    with clean_up_parents(arguments.output):
        manifest = prepare_corpus(corpus, tokenizer, arguments.output, progress, private)
    seconds = time.monotonic() - start
    manifests = {"": manifest} if "splits" in manifest else manifest  # a mixture has a manifest for each part
    for part, facts in manifests.items():
        for name, split in facts["splits"].items():
            counts = (split["num_documents"], split["num_sentences"], split["num_tokens"])
            print("{}{}: {:,} documents, {:,} sentences, {:,} tokens".format(f"{part} " if part else "", name, *counts))
        for reason, skipped in facts["skipped"].items():
            print(f"left out: {skipped['count']:,} x {reason}, such as {', '.join(skipped['examples'])}")
    num_bytes = sum(facts["text_bytes"] for facts in manifests.values())
    print(f"{num_bytes / 1e6:,.1f} MB of text in {seconds:.1f} s ({num_bytes / 1e6 / seconds:.1f} MB/s)")
    first = arguments.output if "" in manifests else f"{arguments.output}/{min(manifests)}"
    flags = shlex.join(["inspect", f"--corpus={first}", f"--vocab={vocab.path}"])
    print(f"next: {program()} {flags}")
    print(
        f"then: {program()} pretrain --config=RECIPE --workdir=DIR --config.vocab.path={vocab.path}"
        f" --config.corpus.path={arguments.output}"
    )


def _show(documents: int, num_bytes: int, tokens: int) -> None:
    line = f"\r{documents:,} documents, {num_bytes / 1e6:,.0f} MB, {tokens:,} tokens"
    print(line, end="", file=sys.stderr, flush=True)
