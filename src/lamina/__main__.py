"""`python -m lamina`, the form that torchrun and users without a PATH entry type."""

import sys

from lamina.cli import run

sys.exit(run())
