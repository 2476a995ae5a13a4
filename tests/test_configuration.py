"""From loose config trees to frozen dataclasses."""

import dataclasses
from typing import Any, Literal

import pytest

from bert_jax.configuration import (
    build,
    choose,
    defaults,
    differences,
    nearest,
)
from bert_jax.errors import UserError
from bert_jax.training.optimizers import adamw


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    kind: Literal["linear", "cosine"] = "linear"


@dataclasses.dataclass(frozen=True)
class Outer:
    steps: int
    name: str = "run"
    fast: bool = False
    limit: int | None = None
    paths: tuple[str, ...] = ()
    inner: Inner = Inner()
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_values_are_typed_and_nested():
    made = build(
        Outer,
        {"steps": 3, "paths": ["a", "b"], "inner": {"rate": 1, "kind": "cosine"}, "limit": 4, "extra": {"x": [1]}},
        "config",
    )
    assert build(Outer, {"steps": 3, "paths": "a"}, "config").paths == ("a",)
    assert made == Outer(steps=3, paths=("a", "b"), inner=Inner(1.0, "cosine"), limit=4, extra={"x": [1]})
    assert isinstance(made.inner.rate, float)


def test_optional_takes_none_and_its_type_only():
    assert build(Outer, {"steps": 1, "limit": None}, "config").limit is None
    assert build(Outer, {"steps": 1, "limit": "None"}, "config").limit is None  # typed in place of a text
    assert build(adamw.Optimizer, {"clip_norm": "None"}, "config").clip_norm is None
    with pytest.raises(UserError, match=r"config\.limit is 'x'; expected int"):
        build(Outer, {"steps": 1, "limit": "x"}, "config")


def test_a_number_that_is_infinite_in_float32_is_refused():
    assert build(Inner, {"rate": -3.4e38}, "config").rate == -3.4e38
    with pytest.raises(UserError, match=r"config\.inner\.rate is 3\.5e\+38; below 3\.4e38 is needed"):
        build(Outer, {"steps": 1, "inner": {"rate": 3.5e38}}, "config")


def test_unknown_key_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown key config\.step; did you mean 'steps'\? valid: extra, fast"):
        build(Outer, {"steps": 1, "step": 2}, "config")
    with pytest.raises(UserError, match=r"unknown key config\.inner\.rat; did you mean 'rate'\?"):
        build(Outer, {"steps": 1, "inner": {"rat": 2}}, "config")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps", 1.5, "config.steps is 1.5; expected int"),
        ("steps", True, "config.steps is True; expected int"),
        ("fast", 1, "config.fast is 1; expected bool"),
        ("name", 3, "config.name is 3; expected str"),
        ("paths", 7, "config.paths is 7; expected"),
        ("paths", ["a", 1], r"config.paths\[1\] is 1; expected str"),
        ("inner", {"rate": "0.1"}, "config.inner.rate is '0.1'; expected float"),
        ("inner", {"rate": float("nan")}, "config.inner.rate is nan; a finite number"),
        ("inner", {"rate": float("inf")}, "config.inner.rate is inf; a finite number"),
        ("inner", {"kind": "step"}, "config.inner.kind is 'step'; allowed: 'linear', 'cosine'"),
    ],
)
def test_wrong_types_are_named(key, value, message):
    with pytest.raises(UserError, match=message):
        build(Outer, {"steps": 1, **{key: value}}, "config")


def test_all_problems_are_reported_together():
    with pytest.raises(UserError) as caught:
        build(Outer, {"nme": "x", "fast": "yes"}, "config")
    for part in ("config.nme", "missing key config.steps", "config.fast is 'yes'"):
        assert part in str(caught.value)


def test_choose_and_nearest():
    assert choose("optimizer", "adamw", {"adamw": 1, "lamb": 2}) == 1
    with pytest.raises(UserError, match=r"unknown optimizer 'adam'; did you mean 'adamw'\? valid: adamw, lamb"):
        choose("optimizer", "adam", {"adamw": 1, "lamb": 2})
    assert nearest("zzz", ["b", "a"]) == "valid: a, b"


def test_differences_name_leaves():
    old = {"a": 1, "b": {"c": [1, 2], "d": None}, "gone": 3}
    new = {"a": 1, "b": {"c": [1, 5], "d": 0}, "new": 4}
    assert differences(old, new) == [
        "config.b.c[1]: 2 -> 5",
        "config.b.d: None -> 0",
        "config.gone: 3 -> None",
        "config.new: None -> 4",
    ]
    assert differences(old, old) == []
    assert differences([1], [1, 2], "x") == ["x: [1] -> [1, 2]"]


def test_defaults_are_a_plain_tree():
    assert defaults(Outer)["inner"] == {"rate": 0.1, "kind": "linear"}
    assert "steps" not in defaults(Outer)
