"""`python -m bestk`: the command line."""

import sys

from bestk.cli import main

sys.exit(main())
