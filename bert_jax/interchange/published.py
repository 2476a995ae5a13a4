"""Takes out of the record of a run what is for nobody else: tokens and passwords, and folders of this machine."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET = r"(?:secret|passw(?:or)?d|(?:api|access|private|secret)_?key|credential|(?:auth|access|api|hf|hub)_?token)s?"
_SECRET_NAME = re.compile(rf"(?i)({_SECRET}|\btoken)$")  # but not mask_token or num_tokens
_NAMED = re.compile(rf"(?i)((?:{_SECRET}|\btoken)['\"]?\s*[:=]\s*['\"]?)[^\s'\",}}]+")
_SECRET_VARIABLE = re.compile(r"(?i)token|secret|passw|credential|(^|_|api|access)key(_|$)")
# Tokens of Hugging Face, GitHub, OpenAI and its like, AWS, Slack and Google, wherever they stand.
_TOKENS = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[a-z]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[\w-]{20,}|AKIA[A-Z0-9]{12,}|xox[a-z]-[\w-]{10,}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_IN_URL = re.compile(
    r"([a-z][\w+.-]*://)[^/\s'\"@]*:[^/\s'\"@]*@|(?<=\?)[^\s'\"]*(?:[sS]ignature|[tT]oken|[kK]ey)=[^\s'\"]*"
)
_QUOTED_PATH = re.compile(r"(['\"])~?/[^'\"\n]*?([^/'\"\n]*)/?\1")
_URL_OR_PATH = re.compile(
    r"([a-z][\w+.-]*://[^\s'\",]*)|(?<![\w./*~\])}-])~?/(?:[^\s/'\",;:=()\[\]{}]+/)*([^\s/'\",;:=()\[\]{}]*)/?"
)
_FLAG = re.compile(r"(--[\w.-]+=)(.*)", re.DOTALL)
_LEAST = 8  # a shorter value of a variable is a word rather than a secret


def published(value: Any, key: str = "") -> Any:
    """Return a tree of JSON without secrets, in which only the last name of each path of this machine is left.

    A text is a secret if its key, or the key of its group, is named like one, or if ``without_secrets`` finds one.
    """
    if isinstance(value, Mapping):
        return {name: published(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [published(inner, key) for inner in value]
    if not isinstance(value, str) or not value:
        return value
    return HIDDEN if _SECRET_NAME.search(key) else _without_folders(value)


def published_command(command: str) -> str:
    """Return the command of a run, a line of the shell or of Python, without secrets and folders of this machine."""
    try:
        words = [] if re.match(r"[\w.]+\(", command) else shlex.split(command)
    except ValueError:
        words = []
    if not words:
        return _without_folders(command)
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        flag, text = found.groups() if (found := _FLAG.fullmatch(word)) else ("", word)
        hides = _SECRET_NAME.search(flag[:-1] if flag else before if before.startswith("--") else "")
        shown.append(flag + (HIDDEN if hides else _without_folders(text)))
    return shlex.join(shown)


def without_secrets(text: str) -> str:
    """Return ``text`` without tokens of known forms, passwords in URLs, and the values of secret variables.

    A variable of the environment is secret if it is named like one, such as ``HF_TOKEN``.
    """
    values = {value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name) and len(value) >= _LEAST}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _TOKENS.sub(HIDDEN, text)
    return _IN_URL.sub(lambda found: f"{found[1]}{HIDDEN}@" if found[1] else HIDDEN, text)


def _without_folders(text: str) -> str:
    """Return ``text`` without secrets, in which a path of this machine has only its last name."""
    text = without_secrets(text)
    if re.match(r"~?/", text):
        return text.rstrip("/").rpartition("/")[2]
    text = _NAMED.sub(rf"\g<1>{HIDDEN}", _QUOTED_PATH.sub(r"\1\2\1", text))
    return _URL_OR_PATH.sub(lambda found: found[1] or found[2], text)
