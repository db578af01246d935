"""A run that cannot learn says so, once."""

import dataclasses
import logging

import pytest

from taspo_trl.reporting.alerts import PATIENCE, Alerts
from taspo_trl.types import StopReason
from tests.builders import trajectory, turn


FINE = trajectory([turn()])


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_batches_without_a_contrast_are_reported_once(said):
    alerts = Alerts()
    for _ in range(PATIENCE - 1):
        alerts.note([FINE] * 4, [0.0] * 4)
    assert said() == []
    alerts.note([FINE] * 4, [0.0, 1.0, -1.0, 0.0])  # a contrast: counted anew
    for _ in range(3 * PATIENCE):
        alerts.note([FINE] * 4, [0.0] * 4)
    assert len(said()) == 1 and "nothing was learned" in said()[0] and "of 4 episodes" in said()[0]


def test_the_first_failure_of_a_kind_is_reported_with_its_cause(said):
    alerts = Alerts()
    broken = dataclasses.replace(FINE, stop_reason=StopReason.ENV_ERROR, error="KeyError: 'boom' (vault.py:31)")
    for _ in range(3):
        alerts.note([FINE, broken], [1.0, 0.0])
    assert len(said()) == 1 and "vault.py:31" in said()[0] and "1 of the 2" in said()[0]
