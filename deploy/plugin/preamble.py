#!/usr/bin/env python3
"""Runs in the plugin before its first import, since its compiled modules are for some releases of Python."""

import sys

if sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13), (3, 14)):
    release = ".".join(map(str, sys.version_info[:2]))
    sys.stderr.write("kubectl kaishare: needs python3 of release 3.11 to 3.14, not " + release + "\n")
    sys.exit(2)
