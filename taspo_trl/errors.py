"""The package's exceptions: a bug or a refusal is one of these, a bad episode never is.

Every class also inherits the standard error that describes it, so that `except ValueError` keeps working. What goes
wrong inside an episode, an analyzer answer or a turn is not an exception but data with a reason: see
[`~taspo_trl.types.StopReason`] and the reject reasons of `analyzer.validation`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TaspoError(Exception):
    """Base class of every exception that this package raises on purpose."""


class ConfigurationError(TaspoError, ValueError):
    """A setting, dataset or combination of options that cannot work; the message names the value and the remedy."""


class MissingDependencyError(TaspoError, ImportError):
    """An optional package is needed and absent; the message names the extra that installs it."""


class EnvironmentContractError(TaspoError, TypeError):
    """An environment class does not follow the protocol of `environments.base`."""


class RolloutError(TaspoError, RuntimeError):
    """Every episode of a rollout batch ended through infrastructure: there is nothing to train on."""


class ServiceError(TaspoError, ConnectionError):
    """A service that an episode depends on (retriever, generation server) is down or answers nonsense.

    Raised inside an environment's `reset` or `step`, it ends that episode with `StopReason.SERVICE_ERROR`.
    """


class AnalyzerError(TaspoError, RuntimeError):
    """The analyzer cannot be used at all: wrong key, unknown model, unreachable host."""


class CheckpointError(TaspoError, OSError):
    """A checkpoint or the final model could not be written, or must not be: the disk is full, the weights are broken.

    Earlier checkpoints are untouched; the message names the last of them.
    """


class HubError(TaspoError, OSError):
    """The Hub refuses a repository or a push, or does not answer in time; nothing in the run's folder is lost."""


class NonFiniteError(TaspoError, ArithmeticError):
    """A policy gives no finite numbers: several steps in a row, which left the weights alone, or a reply's logits."""


class InvariantError(TaspoError, AssertionError):
    """A property that the method guarantees does not hold: a bug in this package, never the user's data."""


class RecordError(TaspoError, ValueError):
    """A saved trajectory record cannot be read: wrong version, missing field, broken line."""


class ReplayError(TaspoError, RuntimeError):
    """A recorded episode does not come back: the same row, seed and actions gave other texts, or none."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` Did you mean ...?` with the nearest of the known names; empty where none is near."""
    close = difflib.get_close_matches(str(name), known, n=1)
    return f" Did you mean `{close[0]}`?" if close else ""
