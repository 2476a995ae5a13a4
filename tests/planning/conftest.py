"""A machine and a plan for several files. The plan is compiled once."""

import pytest

from bert_jax.planning.plan import Machine, Plan, make_plan
from tests.planning import tiny


@pytest.fixture(scope="session")
def machine() -> Machine:
    return tiny.machine()


@pytest.fixture(scope="session")
def plan(machine: Machine) -> Plan:
    return make_plan(tiny.recipe(mesh={"weight_update": "replicated"}), machine, price_per_chip_hour=2.0)
