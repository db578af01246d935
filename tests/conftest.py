"""What holds for every test: libraries that phone home do not."""

import os


os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # TRL's, which also starts a thread
