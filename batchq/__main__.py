"""`python -m batchq` is `batchq`."""

import sys

from batchq.cli import main

sys.exit(main())
