"""Pushes an export to the Hugging Face Hub: one commit, which appears whole or not at all.

Large files are uploaded before the commit. What a broken push has uploaded stays on the Hub, so that the same command
uploads only what is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from bert_jax.errors import UserError, few, first_line
from bert_jax.interchange.card import CARD, RUN, run_key, said
from bert_jax.interchange.workdir import parent_of
from bert_jax.storage import files, hub
from bert_jax.storage.checksums import CHECKSUMS

MAIN = "main"
_OF_THE_HUB = ".gitattributes"  # the only file of a new repository


@dataclasses.dataclass(frozen=True)
class Push:
    """Where an export goes.

    Attributes:
      repository: ``USER/NAME`` on the Hub.
      revision: the branch.
      visibility: who may see a new repository; None: as the settings of the account say.
    """

    repository: str
    revision: str = MAIN
    visibility: Literal["private", "public"] | None = None

    @property
    def name(self) -> str:
        at = "" if self.revision == MAIN else f"@{self.revision}"
        return f"{hub.SCHEME}{self.repository}{at}"

    def check_account(self) -> None:
        """Raise ``UserError`` if the name is no name of a repository, no token may write, or the Hub is not reached."""
        from huggingface_hub import HfApi, constants, get_token

        if self.repository.count("/") != 1 or hub.is_model(self.repository):
            raise UserError(f"--push={self.repository} is not USER/NAME")
        hub.parsed(f"{hub.SCHEME}{self.repository}")
        if constants.is_offline_mode():
            raise UserError(f"--push={self.repository} needs a network, and HF_HUB_OFFLINE is set; unset it")
        if not get_token():
            raise UserError(f"--push={self.repository} needs a token with the right to write; {hub.LOG_IN}")
        with hub.explained(self.name):
            account = HfApi().whoami()
        if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise UserError(f"--push={self.repository}: your token may only read; take another, and {hub.LOG_IN}")

    def check_visible(self, facts: Mapping[str, Any]) -> None:
        """Raise ``UserError`` if the model may not be meant for everybody, and the user does not say who may see it.

        This holds for a private run, and for a run begun from a model of the Hub that not everybody can read.
        """
        if self.visibility:
            return
        reason, source = "", str((parent_of(facts) or {}).get("source"))
        if ((facts.get("run") or {}).get("config") or {}).get("private"):
            reason = "the run was private"
        elif hub.is_model(source) and not _is_public(source):
            reason = f"the run was begun from {source}, which is private or gated"
        if reason:
            raise UserError(f"--push={self.repository}: {reason}; add --private, or --public if everybody may see it")

    def find(self, facts: Mapping[str, Any]) -> Place:
        """Return the place on the Hub as it is now. ``facts``: the facts of the model that is to be pushed.

        Raises ``UserError`` if the repository has files that are not of the same run, or is visible to others than
        ``visibility`` says.
        """
        from huggingface_hub import HfApi, errors

        api, on_branch = HfApi(), True
        with hub.explained(self.name):
            try:
                found = api.model_info(self.repository)
            except errors.RepositoryNotFoundError:
                return Place(self)
            if self.revision != MAIN:
                try:
                    found = api.model_info(self.repository, revision=self.revision)
                except errors.RevisionNotFoundError:
                    on_branch = False
            names = {one.rfilename for one in found.siblings or ()} - {_OF_THE_HUB}
            texts = {
                name: Path(api.hf_hub_download(self.repository, name, revision=found.sha)).read_text("utf-8", "replace")
                for name in names & {CARD, CHECKSUMS}
            }
        if self.visibility and found.private != (self.visibility == "private"):
            raise UserError(
                f"{self.name} is {'private' if found.private else 'public'} already; leave --{self.visibility} out, "
                "give another name, or change it first in the settings of the repository"
            )
        if names and said(texts.get(CARD, ""), RUN) != run_key(facts):
            raise UserError(
                f"{self.name} has files that are not of this run: {few(sorted(names))}; give another name, or delete "
                "these files there"
            )
        listed = files.parse_listing(texts.get(CHECKSUMS, ""))
        return Place(self, found.sha, on_branch, frozenset(listed) & names)


@dataclasses.dataclass(frozen=True)
class Place:
    """A repository of the Hub as it was found.

    Attributes:
      head: the commit to which the push adds one; None if there is no repository.
      on_branch: whether ``head`` is on the branch of the push, which is missing otherwise.
      listed: the files there that an earlier export has written.
    """

    push: Push
    head: str | None = None
    on_branch: bool = True
    listed: frozenset[str] = frozenset()

    def upload(self, folder: Path, title: str) -> str:
        """Push all files of an export in one commit; return a line about it. What older exports had more, is deleted.

        Raises ``UserError`` or ``PassingError`` if the Hub refuses or the connection breaks. Then the branch has no new
        commit, and the same push uploads only what is missing.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        api, push, names, head = HfApi(), self.push, files.below(folder), self.head
        with hub.explained(push.name):
            if head is None:
                api.create_repo(push.repository, private=push.visibility and push.visibility == "private")
                head = api.model_info(push.repository).sha
            if not self.on_branch or (self.head is None and push.revision != MAIN):
                api.create_branch(push.repository, branch=push.revision, revision=head)
            added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names]
            deleted = [CommitOperationDelete(path_in_repo=name) for name in sorted(self.listed - set(names))]
            try:
                done = api.create_commit(
                    push.repository,
                    [*added, *deleted],
                    commit_message=title,
                    revision=push.revision,
                    parent_commit=head,
                )
            except ValueError as error:  # an answer that is not as it should be, such as to the model card
                raise UserError(f"{push.name}: the Hub refuses ({first_line(error)})") from error
        state = "held all of it already" if done.oid == head else f"{len(names)} files"
        return f"pushed to {push.name}: {state}, commit {done.oid}; it is read with --init={push.name}"


def _is_public(source: str) -> bool:
    """Return whether everybody may read a model of the Hub, without a token and without asking for access."""
    from huggingface_hub import HfApi, errors

    with hub.explained(source):
        try:
            found = HfApi(token=False).model_info(hub.parsed(source).id)
        except errors.RepositoryNotFoundError:
            return False
    return not (found.private or found.gated)
