"""Damages of checkpoints: none is silent, none ends in a traceback.

*Silent* is: it ends well, and with other bits than the undamaged files give. Every damage is read both as an export
reads and as a run that resumes.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file

from bert_jax.checkpoints.restoring import BEST, read_params, restore, saved_steps, steps_folder
from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints, save_params
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.loading import read_chosen
from bert_jax.storage import files
from bert_jax.storage.checksums import CHECKSUMS
from bert_jax.workdir.steps import MARKS
from tests import toy
from tests.checkpoints.test_checkpoints import FACTS, state_at
from tests.tasks import toy_tasks
from tests.trust.damage import damage_one, generator, scaled

STORE = "memory://damaged/run"
Tree = dict[str, np.ndarray]  # leaves by name


@dataclasses.dataclass(frozen=True)
class Whole:
    """Workdirs as they were written, and what is read from them.

    Attributes:
      local: has two steps, and the parameters of a best evaluation.
      store: the same as it lies on an object store.
      states: step -> state.
      params: step -> parameters.
      best: the parameters of the best evaluation.
      foreign: folders of steps as another run would have saved them, with the numbers of these and of the best.
    """

    local: Path
    store: Path
    shapes: Any
    states: dict[int, Tree]
    params: dict[int, Tree]
    best: Tree
    foreign: Path


def tree_of(tree: Any) -> Tree:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def same(found: Tree, wanted: Tree) -> bool:
    """Bit for bit."""
    return found.keys() == wanted.keys() and all(
        leaf.tobytes() == wanted[name].tobytes() for name, leaf in found.items()
    )


def shapes_of(step: Any) -> Any:
    handler = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    tree = handler.metadata(step / "state").item_metadata.tree
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), tree)


def whole(local: Path, store: Path) -> Whole:
    """``store`` is filled with what an upload of ``local``, which has two steps, makes."""
    steps = saved_steps(str(local))
    for step in steps:
        target = files.as_path(STORE) / "checkpoints" / str(step)
        files.upload(local / "checkpoints" / str(step), target)
    for name in files.below(STORE):
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes((files.as_path(STORE) / name).read_bytes())
    files.as_path(STORE).rmtree()
    shutil.copy(local / "run.json", store)
    shapes = shapes_of(steps_folder(str(local)) / str(steps[-1]))
    states, trees = {}, {}
    for step in steps:
        alone = copy(local, local.parent / f"alone-{step}")
        for other in set(steps) - {step}:
            shutil.rmtree(alone / "checkpoints" / str(other))
        trees[step] = restore(str(alone), shapes, print)
        states[step] = tree_of(trees[step])
    foreign, theirs = local.parent / "foreign", {**FACTS, "run": {"run_id": "theirs"}}
    save_params(str(foreign), trees[steps[0]]["params"], theirs)
    checkpoints = Checkpoints(str(foreign), CheckpointConfig())
    checkpoints.save_tree(steps[-1], {**trees[steps[0]], "step": trees[steps[-1]]["step"]}, theirs)
    checkpoints.wait()
    checkpoints.close()
    params = {step: tree_of(read_params(str(local), step)[0]) for step in steps}
    best = tree_of(read_params(str(local / BEST))[0])
    return Whole(local, store, shapes, states, params, best, foreign / "checkpoints")


def copy(folder: Path, target: Path) -> Path:
    """Files of checkpoints are links: a damage replaces the file that it damages."""

    def one(source: str, to: str) -> None:
        os.link(source, to) if "checkpoints" in Path(source).parts else shutil.copy(source, to)

    return Path(shutil.copytree(folder, target, copy_function=one))


def resumed(whole: Whole, workdir: str) -> str:
    """Restore, then save on, as a run does."""
    notes: list[str] = []
    state = restore(workdir, whole.shapes, notes.append)
    found, newest = tree_of(state), max(whole.states)
    step = int(found["step"])
    assert same(found, whole.states[step]), f"silent: other bits at step {step}"
    assert step == newest or (notes and "set aside as" in notes[0]), f"silent: {newest} was passed over"
    checkpoints = Checkpoints(workdir, CheckpointConfig())
    for later in range(step + 1, newest + 2):
        checkpoints.save_tree(later, state, FACTS)
    checkpoints.wait()
    checkpoints.close()
    assert saved_steps(workdir)[-1] == newest + 1
    return "set aside" if step < newest else "no harm"


def read(whole: Whole, workdir: str) -> str:
    """As an export reads, and a run that starts from another."""
    params, _, step = read_params(workdir)
    assert step == max(whole.params), "silent: an older step was taken"
    assert same(tree_of(params), whole.params[step]), "silent: other bits"
    return "no harm"


def read_best(whole: Whole, workdir: str) -> str:
    params, _, _ = read_chosen(workdir, None)
    assert same(tree_of(params), whole.best), "silent: other bits"
    return "no harm"


def outcome(attack: Callable[[], str]) -> str:
    """What came of an attack; "silent: ..." and "traceback: ..." are what must not be."""
    try:
        return attack()
    except UserError as error:
        return "one line" if "\n" not in str(error) else f"traceback: {error}"
    except AssertionError as error:
        return str(error).splitlines()[0] if str(error).startswith("silent") else traceback.format_exc()
    except BaseException:
        return f"traceback: {traceback.format_exc()}"


def among(rng: random.Random, *folders: str) -> Callable[[Path], bool]:
    """Which files to damage: of ``folders`` seven times in eight; half the times those with arrays, which are few."""
    wanted, arrays = set(folders) if rng.random() < 7 / 8 else {"checkpoints"}, rng.random() < 0.5
    return lambda path: bool(wanted & set(path.parts)) and (path.parent.name == "d" or not arrays)


def damage_step(steps: Path, newest: int, foreign: Path, rng: random.Random) -> str:
    """Damage the newest of ``steps`` as a whole, as people and their copies do; return what was done."""
    step, others = steps / str(newest), [path for path in steps.iterdir() if path.name != str(newest)]
    kind = rng.choice(["rename", "foreign", "lose_marks", "lose_list", "rewrite_sums", *["swap"] * bool(others)])
    if kind == "rename":
        step.rename(steps / str(newest + rng.randint(1, 100)))
    elif kind == "swap":
        for source, target in ((step, steps / "x"), (others[0], step), (steps / "x", others[0])):
            source.rename(target)
    elif kind == "foreign":
        shutil.rmtree(step)
        shutil.copytree(foreign / str(newest), step)
    elif kind.startswith("lose"):
        for mark in MARKS if kind == "lose_marks" else (CHECKSUMS, files.MARKER):
            (step / mark).unlink(missing_ok=True)
    else:
        largest = max(step.glob("state/**/d/*"), key=lambda path: path.stat().st_size)  # others may hold no array
        damaged = damage_one(step / "state", rng, among=lambda path: path == largest)
        for sums in (step / CHECKSUMS, step / files.MARKER):  # the second lists the first
            names = (
                [name for name in files.parse_listing(sums.read_text()) if (step / name).exists()]
                if sums.exists()
                else []
            )
            sums.unlink(missing_ok=True)
            if names:
                sums.write_text(files.listing({name: files.sha256(step / name) for name in names}))
        return f"{kind} after {damaged}"
    return f"{kind} {newest}"


def damages(whole: Whole, count: int, folder: Path, rng: random.Random) -> None:
    """Make ``count`` damages of each kind of place, each of a copy: of files two times in three, else of a step."""
    counts: dict[str, collections.Counter[str]] = {}
    bad = []
    for kind, use in {"run": read, "best": read_best, "store": read}.items():
        counts[kind] = collections.Counter()
        for number in range(count):
            copied = copy(whole.store if kind == "store" else whole.local, folder / f"{kind}-{number}")
            home, newest = (copied / BEST, 0) if kind == "best" else (copied, max(whole.states))
            if rng.random() < 2 / 3:
                done = damage_one(home / "checkpoints", rng, among=among(rng, str(newest)))
            else:
                done = damage_step(home / "checkpoints", newest, whole.foreign, rng)
            workdir = str(copied)
            if kind == "store":
                workdir = STORE
                for name in files.below(copied):
                    (files.as_path(STORE) / name).write_bytes((copied / name).read_bytes())
            for way, attack in (("export", use), ("resume", resumed)):
                came = outcome(lambda attack=attack, workdir=workdir: attack(whole, workdir))
                counts[kind][f"{done.split()[0]}, {way}: {came}"] += 1
                bad += [f"{kind}, {way}, {done}: {came}"] if came.startswith(("silent", "trace", "Trace")) else []
            if kind == "store":
                files.as_path(STORE).rmtree()
            shutil.rmtree(copied)
    for kind, found in counts.items():
        print(f"{kind}: {found.total() // 2} damages, read {found.total()} times")
        for came, times in sorted(found.items()):
            print(f"  {times:4} {came.splitlines()[0]}")
    assert not bad, "\n".join(bad)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))


def test_a_few_damages(tmp_path: Path) -> None:
    local, store = tmp_path / "local", tmp_path / "store"
    facts = {**FACTS, "run": {"run_id": "ours"}}
    for workdir, steps in ((local, (5, 10)), (local / BEST, (0,))):
        checkpoints = Checkpoints(str(workdir), CheckpointConfig())
        for step in steps:
            checkpoints.save_tree(step, state_at(step) if workdir == local else {"params": state_at(3).params}, facts)
        checkpoints.wait()
        checkpoints.close()
    (local / "run.json").write_text('{"format": 2, "run_id": "ours"}')
    damages(whole(local, store), 5, tmp_path, random.Random(1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 steps that has ended, by the real command."""
    folder = tmp_path_factory.mktemp("trained")
    config = toy.recipe(
        toy.write_text(folder / "text.txt"), model={"dropout_rate": 0.1}, checkpoints={"every_steps": 4}
    )
    toy.write_recipe(folder / "recipe.json", config)
    ended = real_command(folder / "run")
    assert ended.returncode == 0, ended.stderr
    return folder / "run"


def real_command(workdir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bert_jax", "pretrain", f"--config={workdir.parent / 'recipe.json'}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return subprocess.run(
        [*command, f"--workdir={workdir}"], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


def cut_back(workdir: Path) -> Path:
    """Cut a run back to one that was killed after step 20: its steps are 16 and 20."""
    shutil.rmtree(workdir / "checkpoints" / "24")
    assert saved_steps(str(workdir)) == [16, 20]
    return workdir


@pytest.mark.trust
def test_damages(trained: Path, tmp_path: Path) -> None:
    """A real run is damaged, and the functions that resume and read meet the damage."""
    local = cut_back(copy(trained, tmp_path / "local"))
    params, facts, _ = read_params(str(local))
    save_params(str(local / BEST), jax.tree.map(np.negative, params), facts)
    damages(whole(local, tmp_path / "store"), scaled(100), tmp_path, generator("checkpoints"))


def resumed_alone(source: Path, workdir: Path) -> str:
    """Restore as a run does that has ended, the frozen parts too."""
    for part in ("", "frozen"):
        if (source / part / "checkpoints").is_dir():
            *_, newest = saved_steps(str(source / part))
            if part:
                found, wanted = (tree_of(read_params(str(place / part))[0]) for place in (workdir, source))
            else:
                shapes = shapes_of(steps_folder(str(source)) / str(newest))
                notes: list[str] = []
                found, wanted = (tree_of(restore(str(place), shapes, notes.append)) for place in (workdir, source))
                if notes:
                    return "set aside"
            assert same(found, wanted), "silent: other bits"
    return "no harm"


@pytest.mark.trust
def test_damages_before_an_export(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pretrained run is damaged, and the best evaluation of a fine-tuned one."""
    rng = generator("exports of damaged checkpoints")
    (tmp_path / "tuned").mkdir()
    toy_tasks.write_toy(tmp_path / "tuned", "classification", frozen=("encoder",), export=False)
    assert toy_tasks.finetune(tmp_path / "tuned", f"--init={trained}") == 0
    counts: collections.Counter[str] = collections.Counter()
    tuned = tmp_path / "tuned" / "run"
    for name, source, places in (("pretrained", trained, ["24"]), ("fine-tuned", tuned, [BEST, "frozen"])):
        assert run(["export", f"--workdir={source}", f"--output={tmp_path / name}"]) == 0
        wanted = load_file(tmp_path / name / "model.safetensors")
        for number in range(scaled(16)):
            workdir, output = copy(source, tmp_path / f"{name}-{number}"), tmp_path / f"{name}-{number}-export"
            done = damage_one(workdir, rng, among=among(rng, *places))
            capsys.readouterr()
            code = run(["export", f"--workdir={workdir}", f"--output={output}"])
            said = capsys.readouterr().err
            if code == 0:
                assert same(load_file(output / "model.safetensors"), wanted), f"silent: {name}, {done}"
            else:
                assert (code, said.count("\n")) == (2, 1), f"{name}, {done}: {said}"
            assert "Traceback" not in said
            came = outcome(lambda source=source, workdir=workdir: resumed_alone(source, workdir))
            assert not came.startswith(("silent", "trace", "Trace")), f"{name}, {done}: {came}"
            counts[f"{name}: {done.split()[0]}: resume: {came}"] += 1
            counts[f"{name}: {done.split()[0]}: exit code {code}"] += 1
    with capsys.disabled():
        print("\n".join(f"  {times:4} {came}" for came, times in sorted(counts.items())))


@pytest.mark.trust
def test_damages_before_the_real_command(trained: Path, tmp_path: Path) -> None:
    """The run goes on to the end, and to the same bits."""
    rng = generator("resumes of damaged checkpoints")
    wanted = tree_of(read_params(str(trained))[0])
    shutil.copy(trained.parent / "recipe.json", tmp_path)
    for number in range(scaled(8)):
        workdir = cut_back(copy(trained, tmp_path / f"run-{number}"))
        done = damage_one(workdir / "checkpoints" / "20", rng, among=lambda path: path.parent.name == "d")
        with pytest.raises(UserError, match="^[^\n]*step 20 cannot be read[^\n]*$"):
            read_params(str(workdir))
        ended = real_command(workdir)
        lines = [line for line in ended.stderr.splitlines() if "damaged" in line or "resumed" in line]
        print(f"  {done}: exit code {ended.returncode}, {'; '.join(lines)}")
        assert ended.returncode == 0, f"{done}: {ended.stderr}"
        assert "Traceback" not in ended.stderr
        params, _, step = read_params(str(workdir))
        assert step == 24
        assert same(tree_of(params), wanted), f"silent: {done}"
