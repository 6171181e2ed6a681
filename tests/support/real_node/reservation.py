"""Does what KAI's GPU reservation pod does (v0.17.0 cmd/resourcereservation): writes the UUID of its GPU on the pod."""

import json
import os
import signal
import ssl
import urllib.request
from pathlib import Path

import pynvml

pynvml.nvmlInit()
count = pynvml.nvmlDeviceGetCount()
if count != 1:
    raise SystemExit(f"{count} GPUs instead of one")
uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
server = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}".format_map(os.environ)
patch = {"metadata": {"annotations": {"run.ai/reserve_for_gpu_index": uuid}}}
request = urllib.request.Request(
    f"{server}/api/v1/namespaces/{os.environ['POD_NAMESPACE']}/pods/{os.environ['POD_NAME']}",
    json.dumps(patch).encode(),
    {
        "Authorization": f"Bearer {(account / 'token').read_text()}",
        "Content-Type": "application/merge-patch+json",
    },
    method="PATCH",
)
trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
urllib.request.urlopen(request, context=trust, timeout=20).close()
signal.sigwait({signal.SIGTERM, signal.SIGINT})
