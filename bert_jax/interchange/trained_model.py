"""A trained model with its tokenizer, from any source, which gives vectors of texts, fills masks and writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_args

import numpy as np

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.features.extract import Extractor
from bert_jax.features.fill_mask import Filled, fill_mask
from bert_jax.features.generate import BATCH_SIZE, Generated, generate
from bert_jax.features.inputs import Item
from bert_jax.features.sentence_vectors import SentenceVectors
from bert_jax.generation.settings import Settings
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.conversion import Report
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Pooling
from bert_jax.models.model import EncoderPart, config_of
from bert_jax.program import Note, say
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.workdir.run_record import Purpose


@dataclasses.dataclass(frozen=True)
class RunKey:
    """The run of ours that trained a model, at the step of that model."""

    purpose: Purpose
    key: str  # the sha256 of the run's identity and the step


@dataclasses.dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained model with its tokenizer. All methods run without dropout.

    Attributes:
      source: the workdir or the directory that it was read from.
      params: numpy tree, one entry for each part (``encoder``, ``mlm_head``, ...), layers unrolled.
      config: the architecture: number of layers, hidden size and so on.
      head: the head as transformers describes it; None if transformers has no class for the model.
      facts: the record that a workdir keeps, or would keep, with a checkpoint: task, labels, hashes, the run.
      workdir: the workdir that it was read from; None if it comes from another directory.
      step: its step in ``workdir``; 0 for a model that was imported.
      run: the run of ours that trained it; None if it was trained elsewhere.
      report: what happened to each tensor of the file; None if it comes from a workdir.
    """

    source: str
    params: Mapping[str, Any]
    config: ModelConfig
    tokenizer: Tokenizer
    head: HeadClass | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    workdir: str | None = None
    step: int = 0
    run: RunKey | None = None
    report: Report | None = None

    def __repr__(self) -> str:
        c = self.config
        return (
            f"TrainedModel({self.source!r}: {c.encoder}, {c.num_layers} layers of {c.hidden_size}, "
            f"{self.tokenizer.size:,} pieces, at most {c.max_length} tokens; parts: {', '.join(self.params)})"
        )

    @property
    def said_vectors(self) -> SentenceVectors | None:
        """The way to make the vector of a text that the model's files or its training name; None if neither names one.

        Several tasks that pool in different ways name none.
        """
        if said := self.facts.get("sentence_vectors"):
            return build(SentenceVectors, said, "sentence_vectors")
        each = [self.facts, *(self.facts.get("tasks") or {}).values()]
        trained = [one for one in each if "pooling" in (one.get("task") or {})]
        if len({one["task"]["pooling"] for one in trained}) != 1:
            return None
        length = max((one.get("max_length") or 0 for one in trained), default=0) or None
        return SentenceVectors((trained[0]["task"]["pooling"],), max_length=length)

    @property
    def vectors(self) -> SentenceVectors:
        """The way to make the vector of a text: ``said_vectors``, else the mean of the vectors of its tokens."""
        return self.said_vectors or SentenceVectors()

    def pooled_by(self, pooling: Pooling | None, note: Note = lambda line: None) -> TrainedModel:
        """Return the model with another pooling for the vectors of texts; the layers after the pooling stay.

        ``note`` is called with a line if the model's files, or its training, name another pooling. If ``pooling`` is
        None, nothing changes.

        Raises ``UserError`` if there is no such pooling, or the layer after it reads vectors of another size.
        """
        if pooling is None:
            return self
        if pooling not in get_args(Pooling):
            raise UserError(f"pooling is {pooling!r}; allowed: {', '.join(map(repr, get_args(Pooling)))}")
        vectors = dataclasses.replace(self.vectors, pooling=(pooling,))
        if self.said_vectors and self.said_vectors != vectors:
            note(f"{pooling} pooling is taken, as you say; {self.source} says {' + '.join(self.vectors.pooling)}")
        vectors.size(self.params, self.config.hidden_size)
        return dataclasses.replace(self, facts={**self.facts, "sentence_vectors": dataclasses.asdict(vectors)})

    def with_parts(self, parts: Collection[str]) -> TrainedModel:
        """Return the model that has ``parts``: this model, or a second encoder in it, such as ELECTRA's generator.

        If no encoder has all parts, return this model.
        """
        for name, facts in (self.facts.get("encoders") or {}).items():
            if not {*parts} <= self.params.keys() and {*parts} <= self.params.get(name, {}).keys():
                config = config_of(facts).plain()
                params = EncoderPart(name, config, ()).whole(self.params)
                return dataclasses.replace(self, params=params, config=config, head=None)
        return self

    def encode(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> np.ndarray:
        """Return a vector for each text, float32 [number of texts, D].

        The vectors are made as the files of sentence-transformers in the model's folder say, or as the model was
        trained to make them; else they are means of the last layer's vectors over the tokens of a text.

        Args:
          pooling: another pooling, such as "mean" or "cls" (the vector of ``[CLS]``). The dense layers and the
            normalisation that the files name still follow.
          prompt_name: the name of a prompt of the model, which is put before each text. None means the prompt that the
            model's files name as their default, if any.
          max_length: the most tokens of a text, special tokens included; longer texts are cut. None means as the
            model's files or its training say, else as many as the model can read.
          batch_size: the number of texts that are computed together.

        Raises:
          UserError: a text is no string, or an argument is not allowed.
        """
        model = self.pooled_by(pooling, say)
        prompt = model.vectors.prompt(prompt_name)
        return Extractor(model, ["sentence"], max_length, batch_size).texts(_strings(texts), prompt)

    def hidden_states(
        self, texts: Iterable[str], *, max_length: int | None = None, batch_size: int = 32
    ) -> list[np.ndarray]:
        """Return the outputs of every layer for each text, float32 [N + 1, T, D], the embeddings first.

        The T tokens of a text are the tokens of ``tokenizer.encode(text)``, ``[CLS]`` and ``[SEP]`` included.

        Args:
          max_length, batch_size: see ``encode``.

        Raises:
          UserError: a text is no string, or an argument is not allowed.
        """
        items = [Item(str(number), text) for number, text in enumerate(_strings(texts))]
        found = Extractor(self, ["all"], max_length, batch_size).run(items)  # [T, N + 1, D] each
        return [np.ascontiguousarray(one.vectors["all"].swapaxes(0, 1)) for one in found]

    def fill_mask(self, text: str, *, best: int = 5) -> Filled:
        """Return the ``best`` most likely words for each ``[MASK]`` of ``text``, with their probabilities.

        Raises:
          UserError: the text has no mask or is too long, or the model has no masked-LM head or reads left to right.
        """
        if not isinstance(text, str):
            raise UserError(f"text is a {type(text).__name__}; one string with a [MASK] is needed")
        if best < 1:
            raise UserError(f"best is {best}; at least 1 is needed")
        [filled] = fill_mask(self, [text], best)
        return filled

    def generate(self, prompts: Iterable[str], *, batch_size: int = BATCH_SIZE, **settings: Any) -> list[Generated]:
        """Return what the model writes after each prompt: ``num_results`` texts for each, the best first, in order.

        Args:
          batch_size: the number of prompts that are computed together.
          settings: the fields of ``generation.settings.Settings``: ``method`` "greedy", "sample" or "beam",
            ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``, ``seed``, ``beams``, ``length_penalty``,
            ``no_repeat_ngram`` and ``num_results``.

        Raises:
          UserError: a prompt is empty or too long, a setting is not allowed, or the model reads both sides of a token
            and cannot write.
        """
        return generate(self, _strings(prompts), build(Settings, settings, "generate"), batch_size)


def _strings(texts: Iterable[str]) -> list[str]:
    """Return ``texts`` as a list. Raises ``UserError`` for anything but strings."""
    if isinstance(texts, str):
        raise UserError(f"texts is one string; a list of strings is needed: [{texts[:40]!r}]")
    if not isinstance(texts, Iterable):
        raise UserError(f"texts is {texts!r}; a list of strings is needed")
    texts = list(texts)
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise UserError(f"texts has {wrong[0]!r} of type {type(wrong[0]).__name__}; a list of strings is needed")
    return texts
