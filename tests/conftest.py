"""What holds for every test: libraries that phone home do not, and long tests begin first."""

import os


os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # TRL's, which also starts a thread


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that no worker ends long after the others (`make test`)."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
