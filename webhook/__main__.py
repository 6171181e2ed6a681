"""Entry point of `python -m webhook`, which equals `kaishare-webhook`."""

import sys

from webhook.cli import main

sys.exit(main())
