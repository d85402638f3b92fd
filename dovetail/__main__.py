"""`python -m dovetail`, the same as the command `dovetail`."""

import sys

from dovetail.cli import main

if __name__ == "__main__":
    sys.exit(main())
