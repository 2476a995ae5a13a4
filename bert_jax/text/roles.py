"""Roles of special tokens: reads them, and the layout of texts, in a ``tokenizer.json``, and makes the template there.

A tokenizer may lack roles. The tokenizer of a GPT has neither [CLS] nor [SEP], and puts nothing around a text; GPT-2
has the role ``END``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.text.settings import END, ROLES

# role -> names of its token in published tokenizers, for tokenizers whose files do not name the token of the role.
NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


class Layout(NamedTuple):
    """The special tokens around and between texts.

    Attributes:
      separators: the number of separators between the texts of a pair.
      pair_type: the token type of the second text.
      cls_last: whether [CLS] is the last token, of the type ``CLS_TYPE``, as in XLNet, and not the first.
    """

    separators: int = 1
    pair_type: int = 1
    cls_last: bool = False


CLS_TYPE = 2  # the token type of a [CLS] that is the last token


def flat_steps(step: Any, members: str) -> Sequence[Mapping[str, Any]]:
    """Return the steps of a normaliser, pre-tokenizer or post-processor, which may be one step, a sequence, or None."""
    if not step:
        return []
    return (
        [inner for part in step[members] for inner in flat_steps(part, members)]
        if step["type"] == "Sequence"
        else [step]
    )


def is_gpt(roles: Set[str], model: Mapping[str, Any], end: str | None) -> bool:
    """Return whether a tokenizer is a GPT's: it has neither [CLS] nor [SEP], and an end token or marked ends of words.

    Args:
      end: the end token, if there is one.
    """
    return roles.isdisjoint(("cls", "sep")) and bool(end or model.get("end_of_word_suffix"))


def template(special: Mapping[str, tuple[str, int]], layout: Layout) -> dict[str, Any]:
    """Return the post-processor for ``cls A sep`` and ``cls A sep.. B sep``, which names special tokens by their roles.

    If [CLS] is last, it is for ``A sep cls`` and ``A sep.. B sep cls``. ``special``: role -> (token, id).
    """

    def token(role: str, type_id: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": role, "type_id": type_id}}

    def text(name: str, type_id: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    separators, pair_type, cls_last = layout
    before, after = ([], [token("cls", CLS_TYPE)]) if cls_last else ([token("cls")], [])
    first = [*before, text("A"), token("sep")]
    second = [*[token("sep")] * (separators - 1), text("B", pair_type), token("sep", pair_type)]
    return {
        "type": "TemplateProcessing",
        "single": [*first, *after],
        "pair": [*first, *second, *after],
        "special_tokens": _entries(special),
    }


def bare_template(special: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """Return the post-processor that puts nothing around a text, as a GPT's; ``special``: as ``_template`` has it."""
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first],
        "pair": [first, second],
        "special_tokens": _entries(special),
    }


def with_end(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content``, a result of ``normal`` for a GPT, with a template that puts the end token after a text."""
    template, end = content["post_processor"], {"SpecialToken": {"id": END, "type_id": 0}}
    laid_out = {key: [part for text in template[key] for part in (text, end)] for key in ("single", "pair")}
    return {**content, "post_processor": template | laid_out}


def with_cls_last(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content``, a result of ``normal``, with [CLS] after a text, as in XLNet; a GPT's, without it, stays."""
    entries = content["post_processor"]["special_tokens"]
    special = {role: (entry["tokens"][0], entry["ids"][0]) for role, entry in entries.items()}
    return {**content, **({"post_processor": template(special, Layout(cls_last=True))} if "cls" in special else {})}


def _entries(special: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    return {role: {"id": role, "ids": [i], "tokens": [name]} for role, (name, i) in special.items()}


def special_of(content: Mapping[str, Any]) -> dict[str, int]:
    """Return role -> id of the special tokens, in the order of ``ROLES``, ``END`` last, for the result of ``normal``.

    A role is missing if the tokenizer lacks it.
    """
    entries = content["post_processor"]["special_tokens"]
    return {role: entries[role]["ids"][0] for role in (*ROLES, END) if role in entries}


def layout_in(content: Mapping[str, Any]) -> Layout:
    """Return the layout of texts in the result of ``normal``. A GPT's pairs have no separator, and one type."""
    parts = content["post_processor"]["pair"]
    names = [next(iter(part.values()))["id"] for part in parts]
    if "sep" not in names:
        return Layout(0, 0)
    of_second = next(iter(parts[names.index("B")].values()))["type_id"]
    return Layout(names.count("sep") - 1, of_second, names[-1] == "cls")


def roles_of(
    processors: Sequence[Mapping[str, Any]],
    named: Mapping[str, str],
    ids: Mapping[str, int],
    model: Mapping[str, Any],
    where: str,
    end: str | None,
) -> dict[str, str]:
    """Return role -> token for the roles that a token has. In a GPT, the token ``end`` has the role ``END`` alone.

    The token of a role is, in this order: the token that the post-processor names, the model's own [UNK], the token in
    ``named`` (from files beside the tokenizer), or the first of the role's ``NAMES`` that is a piece.
    """
    stated: dict[str, str] = {}
    for step in processors:
        if step["type"] in ("RobertaProcessing", "BertProcessing"):
            stated |= {"cls": step["cls"][0], "sep": step["sep"][0]}
        elif step["type"] == "TemplateProcessing":
            stated |= _template_roles(step)
    unknown = model["vocab"][model["unk_id"]][0] if "unk_id" in model else model.get("unk_token")
    if "unk_id" in model and unknown != named.get("unk", unknown) in ids:  # else an ordinary piece becomes special
        raise UserError(
            f"{where} takes {unknown!r} for unknown characters (unk_id {model['unk_id']}), the files beside it "
            f"{named['unk']!r}; correct the one that is wrong"
        )
    roles: dict[str, str] = {}
    for role in ROLES:
        usual = next((name for name in NAMES[role] if name in ids), None)
        own = unknown if role == "unk" and (model["type"] != "BPE" or role not in named) else None
        token = stated.get(role) or own or named.get(role) or usual
        if token:
            roles[role] = str(token)
    if is_gpt(roles.keys(), model, end):  # GPT-2's files name the end token as [UNK], which it never is, and as [PAD]
        roles = {role: token for role, token in roles.items() if token != end}
    for role, token in roles.items():
        if token not in ids:
            raise UserError(f"{where} takes {token!r} for {role}, which the vocabulary lacks; add it as an added token")
    tokens = list(roles.values())
    if twice := next((token for token in tokens if tokens.count(token) > 1), None):
        both = " and ".join(role for role in roles if roles[role] == twice)
        raise UserError(f"{where} takes {twice!r} for {both}; name another token for each in special_tokens_map.json")
    return roles


def _template_roles(step: Mapping[str, Any]) -> dict[str, str]:
    """Return role -> token as a template states it: by its keys if they are roles, else by the tokens around a text."""
    tokens = {name: entry["tokens"][0] for name, entry in step["special_tokens"].items()}
    if set(ROLES) <= tokens.keys() or tokens.keys() <= {*ROLES, END}:
        return {role: tokens[role] for role in ROLES if role in tokens}
    single = [piece["SpecialToken"]["id"] if "SpecialToken" in piece else None for piece in step["single"]]
    if len(single) == 3 and single[0] and single[1] is None and single[2]:
        return {"cls": tokens[single[0]], "sep": tokens[single[2]]}
    if len(single) == 3 and single[0] is None and single[1] and single[2]:
        return {"cls": tokens[single[2]], "sep": tokens[single[1]]}
    return {}


def check_bare(processors: Sequence[Mapping[str, Any]], end: str | None, where: str) -> None:
    """Raise ``UserError`` if the post-processors of a GPT put other tokens around a text than ``end`` after it."""
    for step in (step for step in processors if step["type"] != "ByteLevel"):
        layout = _layout(step, "single") if step["type"] == "TemplateProcessing" else [step["type"]]
        if layout not in (["A:0"], ["A:0", f"{end}:0"]):
            raise UserError(
                f"{where} lays a text out as {' '.join(layout)} (token:type), and has neither [CLS] nor [SEP]; without "
                "these, a text with nothing before it, and with nothing or the end token after it, can be read"
            )


def layout_of(processors: Sequence[Mapping[str, Any]], roles: Mapping[str, str], where: str) -> Layout:
    """Return the layout of texts by post-processors: BERT's, RoBERTa's with two separators and one type, or XLNet's.

    A template that only joins the texts, without special tokens, tells nothing.
    """
    steps = [step for step in processors if step["type"] != "ByteLevel"]
    if len(steps) > 1:
        raise UserError(f"{where} has {len(steps)} post-processors that put tokens around a text; one can be read")
    if not steps or steps[0]["type"] != "TemplateProcessing":
        return Layout(2, 0) if steps and steps[0]["type"] == "RobertaProcessing" else Layout()
    cls, sep = roles["cls"], roles["sep"]
    single, at_end = [f"{cls}:0", "A:0", f"{sep}:0"], ["A:0", f"{sep}:0", f"{cls}:{CLS_TYPE}"]
    pairs = {
        Layout(count, kind): [*single, *[f"{sep}:0"] * (count - 1), f"B:{kind}", f"{sep}:{kind}"]
        for count in (1, 2)
        for kind in (0, 1)
    }
    if cls_last := _layout(steps[0], "single") == at_end:
        single, pairs = at_end, {Layout(cls_last=True): ["A:0", f"{sep}:0", "B:1", f"{sep}:1", f"{cls}:{CLS_TYPE}"]}
    for name, known in (("single", [single]), ("pair", pairs.values())):
        if (layout := _layout(steps[0], name)) not in known and any(part[:2] not in ("A:", "B:") for part in layout):
            raise UserError(
                f"{where} lays a {'text' if name == 'single' else name} out as {' '.join(layout)} (token:type); "
                f"{cls} A {sep} and {cls} A {sep} B {sep}, or two {sep} between the texts, can be read"
            )
    return next((form for form, pair in pairs.items() if pair == _layout(steps[0], "pair")), Layout(cls_last=cls_last))


def is_bare(content: Mapping[str, Any]) -> bool:
    """Return whether the post-processor in a ``tokenizer.json`` puts no special tokens around a text."""
    steps = flat_steps(content.get("post_processor"), "processors")
    return all(step["type"] == "ByteLevel" or not step.get("special_tokens", True) for step in steps)


def _layout(step: Mapping[str, Any], key: str) -> list[str]:
    """Return "A", "B" or a special token, with its type, for each part of a template."""
    names = {name: entry["tokens"][0] for name, entry in step["special_tokens"].items()}
    pieces = [next(iter(piece.values())) for piece in step[key] or ()]
    return [f"{names.get(piece['id'], piece['id'])}:{piece['type_id']}" for piece in pieces]
