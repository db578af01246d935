"""What holds for every test: no telemetry, the same drawn examples in every run, long tests first."""

import os

import hypothesis


os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # TRL's, which also starts a thread
# `pytest --hypothesis-profile=default` draws new examples; a busy machine is no reason to fail.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None)
hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that no worker ends long after the others (`make test`)."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
