"""The base class of tasks about entities that a text mentions: marks around mentions, and vectors of entities.

The vectors are for encoders that read ``entity_ids`` and ``entity_vectors``, as ERNIE (THU) does (Zhang et al. 2019,
section 3.4). The table of vectors stays on the host, memory-mapped; a batch has the vectors of its tokens alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from bert_jax.corpora.annotators.entities import Annotator
from bert_jax.errors import UserError
from bert_jax.models.entity_table import EntityTable
from bert_jax.models.model import encoder_file
from bert_jax.records import BatchSpec, Example, Feature
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Bucket, RowSource
from bert_jax.tasks import classification
from bert_jax.tasks.base import Setting
from bert_jax.text.encoded import places_of_text
from bert_jax.text.tokenizer import Tokenizer

IDS, VECTORS = "entity_ids", "entity_vectors"


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task`` about entities.

    Attributes:
      entities: the table of vectors, an ``.npy`` file with a row for each entity (``models.entity_table``). If "", the
        encoder gets no entities.
      lexicon: a file that names the entities of the table: a phrase, a tab and the number of its row in each line.
      ignore_case: whether A and a are the same in the lexicon.
      marks: what stands before and after each mention, one for each kind of mention.
    """

    entities: str = dataclasses.field(default="", metadata={"file": True})
    lexicon: str = dataclasses.field(default="", metadata={"file": True})
    ignore_case: bool = False
    marks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for one, other in (("entities", "lexicon"), ("lexicon", "entities")):
            if getattr(self, one) and not getattr(self, other):
                raise UserError(
                    f"config.task.{one} is {getattr(self, one)!r}, and config.task.{other} is not given; name the table"
                    " of vectors and the lexicon of its rows, or neither"
                )


class _Marked(NamedTuple):
    """A text with marks around its mentions, and the first character of each mention in it by role."""

    text: str
    starts: dict[str, int]


class MentionTask(classification.Task):
    """A classification of texts with marks around mentions of entities: the base of tasks about entities.

    Attributes:
      mentions: the roles of mentions, in the order of ``config.task.marks``. The optional role ``entity_role`` of a
        mention names its entity as the lexicon does; without it, or if the lexicon lacks the name, the text of the
        mention is looked up.
      table: the vectors of entities; None if the encoder gets none.
    """

    mentions: ClassVar[tuple[str, ...]]
    table: EntityTable | None = None
    lexicon: Annotator

    def __init__(self, config: Any, setting: Setting):
        self.notes: list[str] = []
        self._check_marks(config.marks, setting.tokenizer)
        reads = encoder_file(setting.model.encoder).Encoder
        if {IDS, VECTORS} <= {*reads.reads, *getattr(reads, "reads_if_given", ())}:
            self._open_table(config, setting)
        elif config.entities:
            raise UserError(
                f"config.task.entities is {config.entities!r}, and the encoder {setting.model.encoder!r} reads no "
                "entities; leave it out, or take a model of the encoder ernie_thu"
            )
        super().__init__(config, setting)

    @staticmethod
    def entity_role(mention: str) -> str:
        """Return the role that names the entity of a mention."""
        return "entity" if mention == "mention" else f"{mention}_entity"

    def _check_marks(self, marks: Sequence[str], tokenizer: Tokenizer) -> None:
        """Raise ``UserError`` unless each mention has a mark of its own, which the vocabulary knows."""
        if len(marks) != len(self.mentions) or len(set(marks)) < len(marks):
            wanted = f"a mark for each of {', '.join(self.mentions)}"
            raise UserError(f"config.task.marks is {tuple(marks)}; {wanted} is needed, and no mark twice")
        unknown = [mark for mark in marks if {*tokenizer.encode_batch([mark])[0].tolist()} <= {tokenizer.unk_id}]
        if unknown:
            raise UserError(
                f"config.task.marks has {unknown[0]!r}, for which the vocabulary has no piece; add the marks to it: "
                f'--config.vocab.added="{tuple(marks)}", or name others'
            )

    def _open_table(self, config: Any, setting: Setting) -> None:
        if not config.entities:
            self.notes.append("config.task.entities is not given: the encoder gets no entities")
            return
        model: Any = setting.model
        self.table = EntityTable.load(config.entities, "config.task.entities")
        self.table.check_width(model.entity_size)
        if model.num_layers - model.first_with_entities < 2:
            self.notes.append(
                "one layer of the model reads entities, so [CLS] does not see them; two layers are needed"
            )
        self.lexicon = Annotator(config.lexicon, config.ignore_case)
        self.table.check_ids(self.lexicon.ids(), f"the lexicon {config.lexicon}")

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        """Return the rows of a classification of the marked texts, with ``entity_ids`` [L] if there is a table."""
        marks = dict(zip(self.mentions, self.config.marks, strict=True))
        marked = [_mark(example, marks) for example in examples]
        rows = super().encode(split, [{**e, "text": one.text} for e, one in zip(examples, marked, strict=True)])
        kept, most = rows.lengths - sum(map(len, self.setting.tokenizer.around)), self.setting.max_length
        long = np.flatnonzero(rows.lengths == most)
        ends = {row: self._spans(marked[row].text)[: kept[row], 1].max(initial=0) for row in long}
        if lost := sum(max(marked[row].starts.values()) >= end for row, end in ends.items()):
            self.notes.append(f"{lost:,} of {len(rows):,} texts have a mention beyond {most} tokens, which is not read")
        return rows if self.table is None else self._with_ids(split, rows, examples, marked)

    def _spans(self, text: str) -> np.ndarray:
        """Return the characters [start, end) of each piece of a text, int64 [n, 2]."""
        encoded = self.setting.tokenizer.encode(text)
        pieces = places_of_text(encoded, self.setting.tokenizer.around)
        return np.array(encoded.offsets[pieces], np.int64).reshape(-1, 2)

    def _with_ids(
        self, split: str, rows: EncodedRows, examples: Sequence[Example], marked: Sequence[_Marked]
    ) -> EncodedRows:
        """Return ``rows`` with ``entity_ids``, and note how many mentions have no vector.

        Raises ``UserError`` if no mention of ``train`` has a vector.
        """
        before, after = map(len, self.setting.tokenizer.around)
        flat, found = np.zeros(int(rows.offsets[-1]), np.int32), 0
        for row, (example, one) in enumerate(zip(examples, marked, strict=True)):
            spans = self._spans(one.text)
            [ids] = self.lexicon.annotate([one.text], [spans])
            for role, start in one.starts.items():
                first = int(np.argmax(spans[:, 1] > start))
                if (name := example.get(self.entity_role(role))) is not None:
                    ids[first] = self.lexicon.id_of(name) or ids[first]
                found += bool(ids[first])
            begin, end = rows.offsets[row] + before, rows.offsets[row + 1] - after
            flat[begin:end] = ids[: end - begin]
        total = len(examples) * len(self.mentions)
        if split == "train" and not found:
            raise UserError(
                f"none of the {total:,} mentions of train has a vector: the lexicon {self.config.lexicon} has neither "
                "their text nor the names that their examples give; take the lexicon of these entities, or leave "
                "config.task.entities out"
            )
        share = f"{(total - found) / max(total, 1):.1%}"
        self.notes.append(f"{total - found:,} of {total:,} mentions ({share}) are of entities without a vector")
        return dataclasses.replace(rows, sequences={**rows.sequences, IDS: flat})

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        rows = super().source(split, kind, phase, part)
        return rows if self.table is None else _WithVectors(rows, self.table.vectors)

    def _specs(self) -> dict[str, BatchSpec]:
        if self.table is None:
            return super()._specs()
        width = self.table.width
        return {
            kind: {**spec, VECTORS: Feature((*spec[IDS].shape, width), "float32")}
            for kind, spec in super()._specs().items()
        }


class _WithVectors(RowSource):
    """The rows of another source, with the vectors [n, L, E] of their ``entity_ids``."""

    def __init__(self, source: RowSource, vectors: np.ndarray):
        self._source, self._vectors = source, vectors

    @property
    def rows_per_epoch(self) -> int:
        return self._source.rows_per_epoch

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return self._source.buckets

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        rows = self._source.rows(epochs, indices)
        return {**rows, VECTORS: self._vectors[rows[IDS]].astype(np.float32)}


def _mark(example: Example, marks: Mapping[str, str]) -> _Marked:
    """Return the text of an example with a mark and a space on either side of each mention."""
    text, added = example["text"], list[tuple[int, bool, str]]()
    for role, mark in marks.items():
        start, end = example[role]
        added += [(end, False, f" {mark}"), (start, True, f"{mark} ")]
    added.sort(key=lambda one: one[:2])  # where one mention ends and another begins, the first is closed first
    pieces, place = [], 0
    for at, _, mark in added:
        pieces += [text[place:at], mark]
        place = at
    starts = {
        role: example[role][0] + sum(len(mark) for at, _, mark in added if at <= example[role][0]) for role in marks
    }
    return _Marked("".join([*pieces, text[place:]]), starts)
