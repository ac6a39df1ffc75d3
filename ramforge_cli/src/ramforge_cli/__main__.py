"""``python -m ramforge_cli``."""

from __future__ import annotations

import sys

from ramforge_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
