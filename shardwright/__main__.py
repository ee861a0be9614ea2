"""``python -m shardwright`` is the command line."""

import sys

from shardwright.tools.main import main

sys.exit(main())
