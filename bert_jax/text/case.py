"""What a user says of the case of a vocabulary, for one whose files do not say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer


KEYS = "--config.vocab."  # what the flags begin with that say the case in a recipe


class Case(NamedTuple):
    """Whether to convert text to lower case and to strip accents; None: not said."""

    lowercase: bool | None = None
    strip_accents: bool | None = None

    def __str__(self) -> str:
        """Return "cased" or "uncased", with what becomes of accents if that is unusual."""
        unusual = {None: "", True: ", accents stripped", False: ", accents kept"}[self.strip_accents]
        return f"{'uncased' if self.lowercase else 'cased'}{unusual}"

    def check(self, tokenizer: Tokenizer, where: str, keys: str = KEYS) -> None:
        """Raise ``UserError`` unless the ``tokenizer`` of the files ``where`` is as the user says.

        ``keys``: what the flags begin with that say it.
        """
        for name, wanted in self._asdict().items():
            found = getattr(tokenizer, name)
            found = tokenizer.lowercase if found is None else found
            if wanted not in (None, found):
                does = {"lowercase": "converts text to lower case", "strip_accents": "strips accents"}[name]
                does = does if found else {"lowercase": "keeps case", "strip_accents": "keeps accents"}[name]
                raise UserError(
                    f"{keys}{name}={wanted} contradicts {where}, whose tokenizer {does}, as its files say; leave it out"
                )


NOT_SAID = Case()
