"""Chooses the tokens of a text one after another, on the device: the likeliest, drawn tokens, or by beam search.

The results equal the results of ``generate`` of transformers 5: beam search with ``early_stopping=False``, n-grams
counted from the beginning of the prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.generation.settings import Settings
from bert_jax.generation.steppers import Prompt, State, Stepper, Variables, reorder
from bert_jax.text.settings import END
from bert_jax.text.tokenizer import Tokenizer

_LOST = -1e9  # added to the score of a text that is out of the race


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a vocabulary that have a part in a search.

    Attributes:
      size: the number of pieces; a model's further logits pad its vocabulary.
      pad: stands after the end of a text.
      ends: a text ends with one of these.
      banned: never written.
    """

    size: int
    pad: int = 0
    ends: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()


def tokens_of(tokenizer: Tokenizer) -> Tokens:
    """Return the tokens that have a part in a search: [SEP], or a GPT's end token, ends a text."""
    roles = tokenizer.role_ids
    ends = tuple(roles[role] for role in (END, "sep") if role in roles)
    return Tokens(tokenizer.size, tokenizer.pad_id, ends, tuple(sorted({*tokenizer.special_ids} - {*ends})))


class Found(NamedTuple):
    """The texts that a search found.

    Attributes:
      ids: [B, R, N] int32, the R texts for each prompt, the best first; an end token is followed by padding.
      lengths: [B, R] int32, the number of tokens of each text without its end token.
    """

    ids: jax.Array
    lengths: jax.Array


class _Text(NamedTuple):
    """The texts of R rows as far as they are written.

    Attributes:
      ids: [R, T]: the tokens before the new text, if n-grams are counted in them, then the new tokens.
      begin: [R] int32, the place of the first new token.
      number: [] int32, how many tokens are new.
    """

    ids: jax.Array
    begin: jax.Array
    number: jax.Array

    def with_next(self, ids: jax.Array) -> _Text:
        """Return the texts with the next tokens ids [R]."""
        rows = jnp.arange(len(ids))
        return _Text(self.ids.at[rows, self.begin + self.number].set(ids), self.begin, self.number + 1)

    def of(self, rows: jax.Array) -> _Text:
        """Return the texts of ``rows``, which may repeat."""
        return _Text(self.ids[rows], self.begin[rows], self.number)

    def new(self, count: int) -> jax.Array:
        """Return the new tokens, [R, count]."""
        return jnp.take_along_axis(self.ids, self.begin[:, None] + jnp.arange(count)[None], axis=1)


class _Rows(NamedTuple):
    """The state of greedy search and of sampling.

    Attributes:
      done: bool [R], whether the text of a row has ended.
      last: [R] int32, the newest token of each row.
    """

    text: _Text
    done: jax.Array
    last: jax.Array

    @property
    def going(self) -> jax.Array:
        return ~jnp.all(self.done)


class _Beams(NamedTuple):
    """The state of beam search over K texts for each of B prompts.

    Attributes:
      text: the texts that may go on, B * K rows.
      scores: [B, K] float32, the sums of their log-probabilities.
      last: [B * K] int32, their newest tokens.
      parents: [B * K] int32, the row of the step before from which each text goes on.
      ended: [B, K, N] int32, the best texts that have ended, the best first.
      ended_scores: [B, K] float32, their scores with the penalty of length.
      is_ended: bool [B, K]; False: the entry of ``ended`` is still free.
      hopeful: bool [B], whether a text that goes on may still be better than one that has ended.
      stuck: bool [], whether nothing can go on, as every text has ended.
    """

    text: _Text
    scores: jax.Array
    last: jax.Array
    parents: jax.Array
    ended: jax.Array
    ended_scores: jax.Array
    is_ended: jax.Array
    hopeful: jax.Array
    stuck: jax.Array

    @property
    def going(self) -> jax.Array:
        return jnp.any(self.hopeful) & ~self.stuck


@dataclasses.dataclass(frozen=True)
class Search:
    """Writes texts with a model. It is hashable: a jitted function may have it as a static argument.

    Attributes:
      settings: their seed is not read; ``__call__`` takes it, so that another seed compiles nothing again.
    """

    stepper: Stepper
    settings: Settings
    tokens: Tokens

    def __call__(self, variables: Variables, seed: jax.Array, prompt: Prompt, numbers: jax.Array) -> Found:
        """Return the texts that follow each prompt.

        Args:
          variables: "params" of the model.
          seed: [] int32.
          prompt: input_ids and attention_mask [B, P], padded at the right; each row has a token.
          numbers: [B] int32: sampling draws by the seed and the number of a prompt, in whatever batch the prompt is.
        """
        settings, new = self.settings, self.settings.max_new_tokens
        logits, state = self.stepper.start(variables, prompt, prompt["input_ids"].shape[1] + new)
        if settings.rows > 1:
            rows = jnp.repeat(jnp.arange(len(logits)), settings.rows)
            logits, state = logits[rows], reorder(state, rows)
        text = self._empty(prompt)
        if settings.method == "beam":
            beams = self._loop(variables, logits, state, self._no_beams(text, len(numbers)), self._next_beams)
            return self._found(beams.ended[:, : settings.num_results])
        keys = self._keys(seed, numbers)
        none = _Rows(text, jnp.zeros(len(text.begin), bool), jnp.zeros(len(text.begin), jnp.int32))
        choose = self._greedy if settings.method == "greedy" else self._draw

        def following(carry: _Rows, logits: jax.Array) -> _Rows:
            ids = jnp.where(carry.done, self.tokens.pad, choose(self._allowed(logits, carry.text), keys, carry.text))
            done = carry.done | jnp.isin(ids, jnp.array(self.tokens.ends, jnp.int32))
            return _Rows(carry.text.with_next(ids), done, ids)

        rows_found = self._loop(variables, logits, state, none, following)
        return self._found(rows_found.text.new(new).reshape(len(numbers), settings.num_results, new))

    def _loop(
        self, variables: Variables, logits: jax.Array, state: State, carry: Any, following: Callable[..., Any]
    ) -> Any:
        """Return the last ``carry`` of a search; ``following`` makes the next from the logits of the next token."""

        def goes_on(both: Any) -> jax.Array:
            carry, _ = both
            return carry.going & (carry.text.number < self.settings.max_new_tokens)

        def step(both: Any) -> Any:
            carry, state = both
            if isinstance(carry, _Beams):
                state = reorder(state, carry.parents)
            logits, state = self.stepper.step(variables, carry.last, state)
            return following(carry, logits), state

        return jax.lax.while_loop(goes_on, step, (following(carry, logits), state))[0]

    def _empty(self, prompt: Prompt) -> _Text:
        """Return texts without a new token."""
        before, begin = self.stepper.history(prompt)
        if not self.settings.no_repeat_ngram:
            before, begin = before[:, :0], jnp.zeros_like(begin)
        before = jnp.where(jnp.arange(before.shape[1])[None] < begin[:, None], before, self.tokens.pad)
        room = jnp.full((len(before), self.settings.max_new_tokens), self.tokens.pad, jnp.int32)
        text = _Text(jnp.concatenate([before.astype(jnp.int32), room], axis=1), begin, jnp.array(0, jnp.int32))
        return text.of(jnp.repeat(jnp.arange(len(before)), self.settings.rows))

    def _allowed(self, logits: jax.Array, text: _Text) -> jax.Array:
        """Return the log-probabilities [R, V] of the next token; of a token that must not come, minus infinity."""
        scores = jax.nn.log_softmax(logits[:, : self.tokens.size].astype(jnp.promote_types(logits.dtype, jnp.float32)))
        if self.tokens.banned:
            scores = scores.at[:, jnp.array(self.tokens.banned)].set(-jnp.inf)
        if self.settings.no_repeat_ngram:
            scores = jnp.where(_repeats(text, self.settings.no_repeat_ngram, self.tokens.size), -jnp.inf, scores)
        return scores

    def _found(self, ids: jax.Array) -> Found:
        """Return the result for new tokens [B, R, N]. A search goes on until a text ends or all N are written."""
        ends = jnp.isin(ids, jnp.array(self.tokens.ends, jnp.int32))
        lengths = jnp.where(jnp.any(ends, axis=-1), jnp.argmax(ends, axis=-1), ids.shape[-1])
        return Found(ids, lengths.astype(jnp.int32))

    # ---- Greedy search and sampling ----------------------------------------------------------------------------------

    def _greedy(self, scores: jax.Array, keys: jax.Array, text: _Text) -> jax.Array:
        del keys, text
        return jnp.argmax(scores, axis=-1).astype(jnp.int32)

    def _keys(self, seed: jax.Array, numbers: jax.Array) -> jax.Array:
        """Return a key of random numbers for each row, [R], from the number of its prompt and of its result."""
        of_prompts = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers)
        results = jnp.arange(self.settings.num_results)
        return jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, results))(of_prompts).reshape(-1)

    def _draw(self, scores: jax.Array, keys: jax.Array, text: _Text) -> jax.Array:
        """Return tokens [R] drawn by their probabilities (top-p: Holtzman et al. 2020, section 3.1)."""
        settings, ids = self.settings, None
        scores = scores / settings.temperature
        if settings.top_k or settings.top_p < 1:  # the likeliest come first
            scores, ids = jax.lax.top_k(scores, min(settings.top_k or self.tokens.size, self.tokens.size))
        if settings.top_p < 1:
            shares = jax.nn.softmax(scores)
            scores = jnp.where(jnp.cumsum(shares, axis=-1) - shares < settings.top_p, scores, -jnp.inf)
        drawn = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, text.number), row))(
            keys, scores
        )
        drawn = drawn if ids is None else jnp.take_along_axis(ids, drawn[:, None], axis=1)[:, 0]
        return drawn.astype(jnp.int32)

    # ---- Beam search -------------------------------------------------------------------------------------------------

    def _no_beams(self, text: _Text, prompts: int) -> _Beams:
        """Return the state before the first token: of the K texts of a prompt, the first alone may go on."""
        shape, flat = (prompts, self.settings.beams), jnp.zeros(len(text.begin), jnp.int32)
        return _Beams(
            text=text,
            scores=jnp.zeros(shape).at[:, 1:].set(_LOST),
            last=flat,
            parents=flat,
            ended=jnp.full((*shape, self.settings.max_new_tokens), self.tokens.pad, jnp.int32),
            ended_scores=jnp.full(shape, _LOST),
            is_ended=jnp.zeros(shape, bool),
            hopeful=jnp.ones(prompts, bool),
            stuck=jnp.array(False),
        )

    def _next_beams(self, beams: _Beams, logits: jax.Array) -> _Beams:
        """Return the state with one more token, from the logits [B * K, V] of the next token.

        Of the (1 + end tokens) * K best candidates, the first K may end, and the K best that do not end go on.
        """
        (prompts, count), size, new = beams.scores.shape, self.tokens.size, self.settings.max_new_tokens
        scores = self._allowed(logits, beams.text).astype(jnp.float32).reshape(prompts, count, size)
        kept = max(2, 1 + len(self.tokens.ends)) * count
        scores, chosen = jax.lax.top_k((scores + beams.scores[..., None]).reshape(prompts, -1), kept)
        rows = (
            jnp.arange(prompts)[:, None] * count + chosen // size
        )  # [B, kept]: the row that each candidate goes on from
        ids = (chosen % size).astype(jnp.int32)
        written = beams.text.number + 1
        ends = jnp.isin(ids, jnp.array(self.tokens.ends, jnp.int32)) | (written == new)

        going = scores + _LOST * ends
        going, best = jax.lax.top_k(going, count)
        parents = jnp.take_along_axis(rows, best, axis=1).reshape(-1)
        last = jnp.take_along_axis(ids, best, axis=1).reshape(-1)

        length = written.astype(jnp.float32) ** self.settings.length_penalty
        may_end = ends & (jnp.arange(kept)[None] < count)
        of_ended = scores / length + _LOST * ~beams.hopeful[:, None] + _LOST * ~may_end
        texts = beams.text.of(rows.reshape(-1)).with_next(ids.reshape(-1)).new(new).reshape(prompts, kept, new)
        merged, best = jax.lax.top_k(jnp.concatenate([beams.ended_scores, of_ended], axis=1), count)
        texts = jnp.concatenate([beams.ended, texts], axis=1)
        is_ended = jnp.take_along_axis(jnp.concatenate([beams.is_ended, may_end], axis=1), best, axis=1)
        worst = jnp.where(is_ended, jnp.min(merged, axis=1, keepdims=True), _LOST)
        return _Beams(
            text=beams.text.of(parents).with_next(last),
            scores=going,
            last=last,
            parents=parents.astype(jnp.int32),
            ended=jnp.take_along_axis(texts, best[..., None], axis=1),
            ended_scores=merged,
            is_ended=is_ended,
            hopeful=beams.hopeful & jnp.any(going[:, :1] / length > worst, axis=1),
            stuck=jnp.all(ends),
        )


def _repeats(text: _Text, size: int, vocabulary: int) -> jax.Array:
    """Return which next tokens would repeat ``size`` tokens in a row that a text has already, bool [R, V]."""
    rows, width = text.ids.shape
    banned = jnp.zeros((rows, vocabulary), bool)
    starts = width - size + 1
    if starts < 1:
        return banned
    count = (text.begin + text.number)[:, None]  # of tokens so far
    last = jnp.take_along_axis(text.ids, jnp.maximum(count - (size - 1) + jnp.arange(size - 1)[None], 0), axis=1)
    same = jnp.arange(starts)[None] + size <= count
    for place in range(size - 1):
        same &= text.ids[:, place : place + starts] == last[:, place : place + 1]
    return banned.at[jnp.arange(rows)[:, None], text.ids[:, size - 1 :]].max(same)
