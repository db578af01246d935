"""`python -m taspo_trl.cli`, which is what `accelerate launch -m` runs."""

import sys

from . import main


if __name__ == "__main__":
    sys.exit(main())
