"""`python -m gpuagent`: the same as `kaishare-agent`."""

import sys

from gpuagent.cli import main

sys.exit(main())
