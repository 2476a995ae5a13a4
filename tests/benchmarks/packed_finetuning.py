"""Measures a fine-tuning without packing, with rows of like length and with packed rows: seconds of its steps, score.

    python -m tests.benchmarks.packed_finetuning RECIPE DATA [--seeds=0,1] [--packings=bucketed,packed] [FLAGS]

Processor seconds are those of all threads: on a machine that others use too, they say more than the clock. What
compiles, evaluates and saves is not counted. The ways alternate, seed by seed.
"""

import sys
import time

import jax

from bert_jax.recipes import recipes
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.rows.loader import Loader
from bert_jax.runs.finetuning import Finetuning
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation


def measure(config, every, seed):
    """Return steps, seconds by the clock and of processors of all steps, and metrics at the end."""
    checked = Finetuning(FinetuningSettings.of(config), None)
    task, experiment = checked.with_examples(every)
    mesh, phase = experiment.check(), experiment.phases.phases[0]
    with meshes.activations(mesh):
        state, frozen = experiment.initial_state(task, mesh).make(seed)
        compiled, seconds = {}, [0.0, 0.0]
        for step, rows in Loader(task.source, experiment.phases, 0, task.batch_specs, experiment.loader):
            batch = meshes.to_devices(rows, mesh)
            if step.kind not in compiled:
                jitted = experiment.jitted_step(task, step.kind, phase, state)
                compiled[step.kind] = jitted.lower(state, frozen, batch).compile()
            begin = time.perf_counter(), time.process_time()
            state = jax.block_until_ready(compiled[step.kind](state, frozen, batch))
            end = time.perf_counter(), time.process_time()
            seconds = [s + after - before for s, before, after in zip(seconds, begin, end, strict=True)]
        metrics = Evaluation(task, mesh, phase, 2**31).run(state.params, frozen)
    return experiment.phases.num_steps, *seconds, metrics


def main(recipe, data, *flags):
    """Print a line for each way and seed."""
    own = {"seeds": "0,1", "packings": "bucketed,packed"}
    own |= dict(flag[2:].split("=", 1) for flag in flags if flag[2:].partition("=")[0] in own)
    keys = [flag for flag in flags if flag[2:].partition("=")[0] not in own]
    every = None
    for seed in own["seeds"].split(","):
        for packing in own["packings"].split(","):
            config = recipes.load(recipe, [*keys, f"--config.seed={seed}", f"--config.packing={packing}"]).to_dict()
            if every is None:
                every = Finetuning(FinetuningSettings.of(config), None).load(data, print)
            steps, clock, processor, metrics = measure(config, every, int(seed))
            scores = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            took = f"{steps:,} steps, {clock:.0f} s, processors {processor:.1f} s"
            print(f"{packing} seed {seed}: {took}; {scores}", flush=True)


main(*sys.argv[1:])
