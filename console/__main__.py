"""Entry point of `python -m console`, which equals `kaishare`."""

import sys

from console.cli import main

sys.exit(main())
