"""Reads what the JSON files beside a tokenizer's file say of the tokenizer, and refuses what cannot be obeyed.

Transformers writes these files into the folder of a model: ``tokenizer_config.json``, ``special_tokens_map.json`` and
``added_tokens.json``; early versions wrote the class and the case into ``config.json``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.storage import reading

# An added token: its ``content``, its ``id`` if the id is known, and the ``FLAGS`` that are on. Without flags, a token
# is found exactly as it is written, before text is converted to lower case.
Token: TypeAlias = Mapping[str, Any]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
ROLES = ("pad", "unk", "cls", "sep", "mask")  # in the order of records.SPECIAL_TOKENS
BERT_NAMES = dict(zip(ROLES, SPECIAL_TOKENS, strict=True))
END = "end"  # the role of the token after a text that has neither [CLS] nor [SEP] around it, as in GPT-2
_CONFIG, _SPECIAL_MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_ADVICE = "give a model with a tokenizer.json that holds all its rules, or learn a vocabulary with `bert-jax vocab`"
_ROLE_KEYS = tuple(f"{role}_token" for role in ROLES)
_AROUND_TEXTS = ("bos_token", "eos_token")
_SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents", "add_prefix_space")
# Rules that no tokenizer of this package has -> the values that leave them off.
_LEFT_OFF: dict[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True,),
    "do_word_tokenize": (True,),
    "do_subword_tokenize": (True,),
    "never_split": ([],),
    "remove_space": (True,),
    "clean_text": (True,),
    "wordpieces_prefix": ("##",),
    "split_special_tokens": (False,),
    "truncation_side": ("right",),
    "word_tokenizer_type": ("basic",),
    "subword_tokenizer_type": ("wordpiece",),
    "sp_model_kwargs": ({},),
}
# The ending of a file -> the classes whose rules are known where no tokenizer.json says them.
_READ = {
    "txt": "Bert DistilBert Electra Ernie MobileBert ConvBert SqueezeBert LayoutLM Lxmert RetriBert Realm Nezha "
    "DPRContextEncoder DPRQuestionEncoder DPRReader",
    "model": "Albert BigBird T5 MT5 XLNet",
    "merges": "Roberta Bart GPT2 LED Longformer Mvp OpenAIGPT",
}
_PLAIN = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "BertTokenizerLegacy")  # of any rules
# Classes that split text by a program, which no tokenizer.json can hold; transformers reads no tokenizer.json for them.
_PROGRAMS = (
    "BertJapanese BertSudachipy ElectraSudachipy Sudachi Juman Jumanpp Mecab KoBert Phobert Bertweet Bartpho RoFormer "
    "RoCBert Tapas XLM Flaubert FSMT BioGpt BlenderbotSmall Cpm CpmAnt CTRL Canine ByT5 MyT5 Perceiver ProphetNet "
    "GPTNeoXJapanese M2M100 Marian"
)
# Classes of other rules, where the files name only the type of the model.
_OTHERS = "Barthez Camembert FNet Funnel MPNet RemBert Splinter XLMRoberta XLNet"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The content of the files in ``where``. ``options`` joins tokenizer_config.json and special_tokens_map.json."""

    where: str
    options: Mapping[str, Any]
    tokens: tuple[Token, ...]  # the added tokens, by id
    model_type: str | None

    @property
    def roles(self) -> dict[str, str]:
        """Return role -> token for the special tokens that are named."""
        named = {role: _content(self.options.get(f"{role}_token")) for role in ROLES}
        return {role: token for role, token in named.items() if token}

    def switch(self, name: str) -> bool | None:
        """Return whether a rule is on; None if no file says it."""
        value: bool | None = self.options.get(name)
        return value

    def flags(self, token: str) -> dict[str, bool]:
        """Return the flags that say where a special token is found in a text, if the files name it by an object."""
        named = (self.options.get(f"{role}_token") for role in ROLES)
        found = next((value for value in named if isinstance(value, dict) and value["content"] == token), {})
        return {flag: found[flag] for flag in ("single_word", "lstrip", "rstrip") if found.get(flag) is not None}

    def added(self, pieces: Collection[str]) -> list[Token]:
        """Return the added tokens, without the tokens around whole texts that are ``pieces`` already."""
        around = {_content(self.options.get(name)) for name in _AROUND_TEXTS}
        return [token for token in self.tokens if not (token["content"] in around and token["content"] in pieces)]

    @property
    def has_albert_rules(self) -> bool:
        """Return whether a model of sentencepiece is read by ALBERT's rules, which XLNet's tokenizer has too."""
        return self.is_xlnet or (self.class_name or f"{self.model_type}") in ("AlbertTokenizer", "albert")

    @property
    def is_xlnet(self) -> bool:
        """Return whether a model of sentencepiece puts [CLS] after a text."""
        return self.class_name == "XLNetTokenizer"

    @property
    def end(self) -> str | None:
        """Return the token that the files name as the end of a text."""
        return _content(self.options.get("eos_token"))

    @property
    def is_gpt(self) -> bool:
        """Return whether merges without a ``tokenizer.json`` are read by GPT-1's rules."""
        return (self.class_name or f"{self.model_type}") in ("OpenAIGPTTokenizer", "openai-gpt")

    @property
    def is_roberta(self) -> bool:
        """Return whether byte-level merges are read by RoBERTa's rules, which put <s> and </s> around a text."""
        known = [f"{word}Tokenizer" for word in _READ["merges"].split() if "GPT" not in word]
        return self.class_name in known if self.class_name else self.model_type == "roberta"

    @property
    def leaves_texts_bare(self) -> bool:
        """Return whether the class puts no special tokens around a text, unless a tokenizer.json has a template."""
        return self.class_name in (*_PLAIN, "GPT2Tokenizer", "OpenAIGPTTokenizer")

    @property
    def class_name(self) -> str | None:
        """Return the class that the files name; else the class of the model's type, if that class has its own rules."""
        name: str | None = self.options.get("tokenizer_class")
        if not name and self.model_type:
            kind = self.model_type.replace("-", "").replace("_", "")
            return next((f"{word}Tokenizer" for word in f"{_PROGRAMS} {_OTHERS}".split() if word.lower() == kind), None)
        return name if not name or name in _PLAIN else name.removesuffix("Fast")

    def check_class(self, ending: str) -> None:
        """Raise ``UserError`` if the files name a class whose rules a file with this ending does not hold."""
        whole, name = ending == "json", self.class_name
        known = [f"{word}Tokenizer" for word in (_PROGRAMS if whole else _READ[ending]).split()]
        if name and name not in _PLAIN and whole == (name in known):
            raise UserError(
                f"{self.where} names the tokenizer_class {name}, whose rules are not known here"
                f"{': it splits text by a program' if whole else ' without a tokenizer.json'}; {_ADVICE}"
            )
        code = self.options.get("auto_map")
        if code and not (isinstance(code, Mapping) and not code.get("AutoTokenizer")):
            raise UserError(
                f"{self.where}/{_CONFIG} names a tokenizer that is a program (auto_map), which is not run here; if the "
                "folder's tokenizer.json cuts text as the program does, remove auto_map from the file"
            )


def beside(source: Any) -> Settings:
    """Return the settings of the tokenizer whose file is ``source``. Raises ``UserError`` for what cannot be obeyed."""
    folder = source.parent
    beside_it = (folder / name for name in (_CONFIG, _SPECIAL_MAP, _ADDED))
    config, special_map, ids = (read_json(file) if file.exists() else {} for file in beside_it)
    model = reading.read_object(folder / "config.json") or {}
    early = {key: model[key] for key in ("tokenizer_class", "do_lower_case") if model.get(key) is not None}
    options = early | {key: value for content in (config, special_map) for key, value in content.items()}
    options = {key: value for key, value in options.items() if value is not None}
    for name in _SWITCHES:
        if not isinstance(options.get(name, False), bool):
            raise _unreadable(folder / _CONFIG, name, options[name], "true or false is needed")
    for name, off in _LEFT_OFF.items():
        if name in options and options[name] not in off:
            raise _unreadable(
                folder / _CONFIG, name, options[name], f"{json.dumps(off[0])} alone can be read; {_ADVICE}"
            )
    if not isinstance(options.get("tokenizer_class", ""), str):
        raise _unreadable(folder / _CONFIG, "tokenizer_class", options["tokenizer_class"], "a name is needed")
    for name in (*_ROLE_KEYS, *_AROUND_TEXTS):
        if name in options:
            check_token(options[name], folder / _CONFIG, name)
    kind = model.get("model_type")
    tokens = _tokens(folder, config, special_map, ids)
    return Settings(str(folder), options, tokens, kind if isinstance(kind, str) else None)


def _tokens(folder: Any, config: Mapping[str, Any], special_map: Mapping[str, Any], ids: Mapping[str, Any]) -> Any:
    """Return the added tokens of the three files, by id."""
    listed = [*_listed(config, folder / _CONFIG), *_listed(special_map, folder / _SPECIAL_MAP)]
    named = [content.get(key) for content in (config, special_map) for key in (*_ROLE_KEYS, *_AROUND_TEXTS)]
    special = {token["content"] for token in listed} | {_content(token) for token in named}
    by_id = config.get("added_tokens_decoder") or {}
    if not isinstance(by_id, Mapping):
        raise _unreadable(folder / _CONFIG, "added_tokens_decoder", by_id, "an object, id -> token, is needed")
    decoded = [
        {**check_token(token, folder / _CONFIG, f"added_tokens_decoder.{i}", Mapping), "id": _id(i, folder / _CONFIG)}
        for i, token in by_id.items()
    ]
    plain = [
        {"content": text, "id": _id(i, folder / _ADDED), "special": text in special, "normalized": text not in special}
        for text, i in ids.items()
    ]
    tokens: dict[str, Token] = {}
    for token in [*decoded, *plain, *listed]:
        tokens.setdefault(token["content"], token)
    return tuple(sorted(tokens.values(), key=lambda token: token.get("id", float("inf"))))


def _listed(content: Mapping[str, Any], file: Any) -> Iterator[dict[str, Any]]:
    """Yield the special tokens that a file lists, each as a string or as an object."""
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = content.get(key) or ()
        if not isinstance(values, list | dict | tuple):
            raise _unreadable(file, key, values, "a list of tokens is needed")
        for value in values.values() if isinstance(values, dict) else values:
            yield check_token(value, file, key)


def check_token(value: Any, file: Any, key: str, kind: type[Any] = object) -> dict[str, Any]:
    """Return a token, a string or an object in ``file``, as an object. Raises ``UserError`` if it is neither."""
    token = {"content": value, "special": True} if isinstance(value, str) else value
    if not (isinstance(value, kind) and isinstance(token, dict) and isinstance(token.get("content"), str)):
        wanted = 'an object with "content" is needed' if kind is Mapping else "a token's text is needed"
        raise _unreadable(file, key, value, wanted)
    if not token["content"]:
        raise _unreadable(file, key, value, "a token without text cannot be found")
    for flag in FLAGS:
        if not isinstance(token.get(flag), bool | None):
            raise _unreadable(file, f"{key}.{flag}", token[flag], "true or false is needed")
    return dict(token)


def _content(value: Any) -> str | None:
    """Return the text of a token."""
    return value["content"] if isinstance(value, dict) else value


def _id(value: Any, file: Any) -> int:
    """Return the id of an added token, a number or its digits."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise _unreadable(file, "the id of a token", value, "a number is needed")
    return number


def _unreadable(file: Any, key: str, value: Any, wanted: str) -> UserError:
    shown = json.dumps(value, ensure_ascii=False)
    return UserError(f"{file} has {shown[:60]} for {key}; {wanted}")


def read_json(source: Any) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ``UserError`` if it holds something else."""
    try:
        content = json.loads(reading.read_bytes(source))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{source} is not JSON ({error}); it may be cut short: copy it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{source} holds no JSON object, but a {type(content).__name__}; copy it again")
    return content
