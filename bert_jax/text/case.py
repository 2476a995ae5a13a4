"""The case of a vocabulary, as a user says it if the files of the vocabulary do not."""

from __future__ import annotations

from typing import NamedTuple

from bert_jax.errors import UserError

KEYS = "--config.vocab."  # the beginning of the flags that say the case in a recipe


class Case(NamedTuple):
    """Whether to convert text to lower case and to strip accents; None: not said."""

    lowercase: bool | None = None
    strip_accents: bool | None = None

    def __str__(self) -> str:
        """Return "cased" or "uncased", and whether accents are stripped or kept if the usual rule does not hold."""
        unusual = {None: "", True: ", accents stripped", False: ", accents kept"}[self.strip_accents]
        return f"{'uncased' if self.lowercase else 'cased'}{unusual}"

    def check(self, case: Case, where: str, keys: str = KEYS) -> None:
        """Raise ``UserError`` if ``case``, the case of the tokenizer of the files ``where``, contradicts the user.

        ``keys``: the beginning of the flags that say the case.
        """
        for name, wanted in self._asdict().items():
            found = getattr(case, name)
            found = case.lowercase if found is None else found
            if wanted not in (None, found):
                does = {"lowercase": "converts text to lower case", "strip_accents": "strips accents"}[name]
                does = does if found else {"lowercase": "keeps case", "strip_accents": "keeps accents"}[name]
                raise UserError(
                    f"{keys}{name}={wanted} contradicts {where}, whose tokenizer {does}, as its files say; leave it out"
                )


NOT_SAID = Case()
