"""Parity with transformers needs torch, so only `make parity` collects it."""

import os

collect_ignore_glob = [] if os.environ.get("DOVETAIL_PARITY") else ["*.py"]
