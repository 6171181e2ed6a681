"""`python -m webhook`: the same as `kaishare-webhook`."""

import sys

from webhook.cli import main

sys.exit(main())
