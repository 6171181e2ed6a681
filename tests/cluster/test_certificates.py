"""Self-signed certificates of the webhook in a real cluster: creation, rotation, damage and repair."""

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import load_der_x509_certificate

from certs.authority import Authority
from certs.ca_injector import CABundleInjector, certificates_in, der
from certs.manager import CertificateManager
from certs.rotation import CASet, Leaf, Lifetimes, to_secret_data
from kube.answers import ApiError
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    WEBHOOK_RIGHTS,
    Canary,
    Serving,
    configured,
    ensure_namespaces,
    external_service,
    failed_open,
    has_share,
    managed_namespace,
    start_serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.kube_user import account
from tests.support.registration import (
    ServiceTarget,
    UrlTarget,
    mutating_configuration,
    validating_configuration,
)
from tests.support.self_policy import self_policy_on
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod
from webhook.registration.configurations import CONFIGURATION_NAME, MUTATE

NAMESPACE = "team-a"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
SECRET = f"{SECRETS}/kaishare-webhook-ca"
MANAGED = managed_namespace("certified", gpu_fraction="0.5", priority="train")
ENFORCED = managed_namespace("certified-strictly", gpu_fraction="0.5", mode="enforce")
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{REGISTRATION}/mutatingwebhookconfigurations/{CONFIGURATION_NAME}"
VALIDATING = f"{REGISTRATION}/validatingwebhookconfigurations/{CONFIGURATION_NAME}"
REGISTRATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
RIGHTS = tuple(rule for rule in WEBHOOK_RIGHTS if rule["resources"][0] in ("secrets", *REGISTRATIONS))
NOWHERE = UrlTarget("https://127.0.0.1:9")

Start = Callable[..., Awaitable[Serving]]
REPLICAS = account(NAMESPACE, "replica-")


@pytest.fixture(scope="module", autouse=True)
def _limited(plane: ControlPlane) -> Iterator[None]:
    """The policy kaishare-webhook-self limits every replica of `start`."""
    with self_policy_on(plane, f"request.userInfo.username.startsWith('{REPLICAS}')", f"{REPLICAS}0"):
        yield


@pytest.fixture
async def start(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts replicas with the rights that an installation gives them; there is an empty Secret."""
    await ensure_namespaces(admin.client, MANAGED, ENFORCED)
    await put_secret(admin, {})
    (tmp_path / "policies.yaml").write_text(yaml.safe_dump_all([MANAGED, ENFORCED]))
    running: list[Serving] = []
    numbers = count()

    async def start_one(*options: str, rights: tuple[dict[str, Any], ...] = RIGHTS) -> Serving:
        name = f"replica-{next(numbers)}"
        pod = in_a_pod(plane, await admin.token(name, *rights), tmp_path)
        served = await start_serving(
            tmp_path / name, "--policies", f"{tmp_path}/policies.yaml", "--namespace", NAMESPACE,
            "--host-name", "127.0.0.1", "--drain", "0s", *options,
            program=pod.program, environment=pod.environment,
        )  # fmt: skip
        running.append(served)
        return served

    yield start_one
    for replica in running:
        await replica.kill()
    await admin.delete(SECRET)


async def put_secret(admin: Administrator, data: Mapping[str, bytes | None]) -> None:
    """Write a Secret with exactly this data."""
    with contextlib.suppress(ApiError):
        await admin.delete(SECRET)
    texts = {key: base64.b64encode(value).decode() for key, value in data.items() if value is not None}
    secret = {"kind": "Secret", "metadata": {"name": "kaishare-webhook-ca"}, "data": texts}
    await admin.post(SECRETS, secret)


async def secret(admin: Administrator) -> dict[str, bytes]:
    data = (await admin.read(SECRET)).get("data") or {}
    return {key: base64.b64decode(text) for key, text in data.items()}


async def bundles(admin: Administrator) -> list[bytes]:
    """Return the bundle of every webhook of kaishare."""
    stored = [await admin.read(MUTATING), await admin.read(VALIDATING)]
    webhooks = [webhook for each in stored for webhook in each["webhooks"]]
    return [base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks]


async def until_trusted(admin: Administrator, *certificates: bytes, most: int | None = None) -> None:
    """Wait until every bundle holds these and no others; `most=1` looks at the mutating webhook's alone."""
    wanted = {der(pem) for pem in certificates}

    async def are_right() -> bool:
        return all(certificates_in(bundle) == wanted for bundle in (await bundles(admin))[:most])

    await until(are_right, "every bundle holds what it should")


async def until_ready(replica: Serving) -> None:
    async def is_ready() -> bool:
        return (await replica.get("/readyz"))[0] == 200

    await until(is_ready, "ready")


async def rotations(replica: Serving) -> dict[str, float]:
    """Return a replica's certificate rotations by result, without renewed leaves."""
    series = await replica.series()
    prefix = 'kaishare_certificate_rotations_total{result="'
    counts = {
        name.removeprefix(prefix)[:-2]: value for name, value in series.items() if name.startswith(prefix)
    }
    return {result: value for result, value in counts.items() if result != "renewed"}


def leaf_of(replica: Serving) -> bytes:
    """Return the certificate that a replica serves now, in DER."""
    address = (replica.admission.host, replica.admission.port)
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(address))


def is_of(leaf: bytes, ca: bytes) -> bool:
    """Whether a CA (PEM) signed a leaf (DER)."""
    try:
        load_der_x509_certificate(leaf).verify_directly_issued_by(load_der_x509_certificate(der(ca)))
    except InvalidSignature:
        return False
    return True


def configurations(
    target: UrlTarget | ServiceTarget, validating: UrlTarget | None = None, *, ca_bundle: bytes = b""
) -> list[Any]:
    """Return the configurations as a chart installs them: without a caBundle."""
    return [
        mutating_configuration(target, ca_bundle=ca_bundle),
        validating_configuration(validating or target, ca_bundle=ca_bundle),
    ]


def authority(*, age: timedelta, lifetime: timedelta) -> Authority:
    return Authority.create(now=datetime.now(UTC) - age, lifetime=lifetime)


async def test_a_fresh_installation_gets_a_ca_and_is_ready_when_it_is_trusted(
    admin: Administrator, start: Start
) -> None:
    replica = await start()
    (created,) = replica.logged("CA created")
    assert created["reason"] == "the Secret was empty"
    missing = f"no trusted certificate yet: webhook configuration {CONFIGURATION_NAME} does not exist: no API server calls this webhook\n"
    await until_not_ready_because(replica, missing)

    services = f"/api/v1/namespaces/{NAMESPACE}/services"
    service = ServiceTarget(namespace=NAMESPACE, name="kaishare-webhook", port=replica.admission.port)
    await admin.post(services, external_service(service.name, NAMESPACE, service.port))
    try:
        async with configured(admin.client, *configurations(service)):
            await until_ready(replica)
            ca = (await secret(admin))["ca.crt"]
            await until_trusted(admin, ca)
            canary = Canary(admin.client, "certified")
            await canary.until_mutated()
            assert has_share(await canary.pod())
        await canary.until_unchanged()
        assert (await replica.get("/readyz"))[0] == 200
    finally:
        await admin.delete(f"{services}/{service.name}")
    series = await replica.series()
    expiry = "kaishare_certificate_expiry_timestamp_seconds"
    in_90_days = (datetime.now(UTC) + timedelta(days=90)).timestamp()
    assert series[f'{expiry}{{kind="ca"}}'] == pytest.approx(in_90_days, abs=300)
    assert series[f'{expiry}{{kind="serving"}}'] < in_90_days - 80 * 86400
    assert await rotations(replica) == {"created": 1}


async def until_failed(replica: Serving) -> None:
    """Wait until the metric that the alerts use has a failure."""

    async def has_failed() -> bool:
        series = await replica.series()
        errors = series.get('kaishare_webhook_errors_total{stage="certificate"}', 0)
        return bool(errors and (await rotations(replica)).get("failed"))

    await until(has_failed, "a failure is counted")


async def until_not_ready_because(replica: Serving, text: str) -> None:
    async def is_so() -> bool:
        return await replica.get("/readyz") == (503, text)

    await until(is_so, f"not ready: {text}")


async def test_replicas_that_start_at_once_agree_on_one_ca(admin: Administrator, start: Start) -> None:
    async with configured(admin.client, *configurations(NOWHERE)):
        async with asyncio.TaskGroup() as group:
            starts = [group.create_task(start()) for _ in range(3)]
        replicas = [task.result() for task in starts]
        ca = (await secret(admin))["ca.crt"]
        for replica in replicas:
            await until_ready(replica)
            assert is_of(await asyncio.to_thread(leaf_of, replica), ca)
        await until_trusted(admin, ca)
        assert sum([(await rotations(replica)).get("created", 0) for replica in replicas]) == 1


@pytest.mark.slow
async def test_a_rotation_loses_no_pod(admin: Administrator, start: Start) -> None:
    due = authority(age=timedelta(seconds=61), lifetime=timedelta(seconds=90))
    await put_secret(admin, to_secret_data(CASet(current=due)))
    options = ["--ca-lifetime", "90s", "--leaf-lifetime", "60s", "--bundle-wait", "3s"]
    mutates, validates = await start(*options), await start(*options)
    known = configurations(mutates.target, validates.target, ca_bundle=due.pair.certificate_pem)
    async with configured(admin.client, *known):
        canary = Canary(admin.client, "certified-strictly")
        await canary.until_mutated()
        before, created = await failed_open(admin.client, MUTATE), 0
        assert is_of(await asyncio.to_thread(leaf_of, mutates), due.pair.certificate_pem)

        async def both_switched() -> bool:
            new = (await secret(admin))["ca.crt"]
            if new == due.pair.certificate_pem:
                return False
            leaves = [await asyncio.to_thread(leaf_of, replica) for replica in (mutates, validates)]
            return all(is_of(leaf, new) for leaf in leaves)

        switched = asyncio.create_task(until(both_switched, "both serve leaves of the new CA"))
        while not switched.done() or created % 50:
            pod = await canary.pod(name=f"pod-{created}")  # refused if the validating webhook is not trusted
            assert pod["spec"]["schedulerName"] == "kai-scheduler"
            created += 1
        await switched
        assert created >= 50
        assert await failed_open(admin.client, MUTATE) == before
        stored = await secret(admin)
        assert stored.keys() == {"ca.crt", "ca.key", "old.crt"}
        assert stored["old.crt"] == due.pair.certificate_pem
        assert due.pair.key_pem not in stored.values()
        await until_trusted(admin, stored["ca.crt"], stored["old.crt"])
        done = [await rotations(replica) for replica in (mutates, validates)]
        sums = {key: sum(each.get(key, 0) for each in done) for key in ("added", "switched", "replaced")}
        assert sums == {"added": 1, "switched": 1, "replaced": 0}
    await canary.until_unchanged()


async def test_a_ca_that_is_added_by_hand_is_next_and_the_old_one_can_be_removed(
    admin: Administrator, start: Start, tmp_path: Path
) -> None:
    """As docs/security.md says, even if the file of the certificate has the key, too."""
    openssl = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90"
        f" -addext keyUsage=critical,keyCertSign,cRLSign -keyout {tmp_path}/next.key -out {tmp_path}/next.crt"
    )
    command = [*openssl.split(), "-subj", "/CN=kaishare webhook CA"]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    made = {name: (tmp_path / name).read_bytes() for name in ("next.crt", "next.key")}
    files = made | {"next.crt": made["next.key"] + made["next.crt"]}
    texts = {name: base64.b64encode(content).decode() for name, content in files.items()}
    async with configured(admin.client, *configurations(NOWHERE)):
        replica = await start("--bundle-wait", "1s")
        await until_ready(replica)
        old = (await secret(admin))["ca.crt"]
        await admin.merge(SECRET, {"data": texts})
        await until(
            lambda: [
                line for line in replica.logged("certificate issued") if line["reason"] == "there is a new CA"
            ],
            "it serves a leaf of the new CA",
        )
        assert is_of(await asyncio.to_thread(leaf_of, replica), made["next.crt"])
        await until_trusted(admin, made["next.crt"], old)
        assert b"PRIVATE KEY" not in b"".join(await bundles(admin))
        await admin.merge(SECRET, {"data": {"old.crt": None}})
        await asyncio.sleep(1)  # it reads the Secret four times a second here
        await overwrite(admin, b"")
        await until_trusted(admin, made["next.crt"], most=1)


async def test_a_lost_secret_is_restored_from_the_known_ca_set(admin: Administrator, start: Start) -> None:
    broken = {"ca.crt": b"x", "ca.key": b"y", "note": b"z"}
    async with configured(admin.client, *configurations(NOWHERE)):
        replica = await start("--bundle-wait", "1s")
        await until_ready(replica)
        before = await secret(admin)
        await admin.delete(SECRET)
        (trouble,) = await until(lambda: replica.logged("certificate problem")[-1:], "it is missed")
        assert trouble["part"] == "secret"
        assert trouble["problem"] == (
            "Secret team-a/kaishare-webhook-ca does not exist: create it with"
            " `kubectl create secret generic kaishare-webhook-ca -n team-a`"
        )
        assert (await replica.get("/readyz"))[0] == 200
        await until_failed(replica)
        await put_secret(admin, broken)

        async def is_back() -> bool:
            return before.items() <= (await secret(admin)).items()

        await until(is_back, "the Secret holds what it held")
        assert await secret(admin) == before | {"note": b"z"}
        assert len(await until(lambda: replica.logged("CA restored"), "it says so")) == 1
        await until_trusted(admin, before["ca.crt"])


async def test_an_overwritten_bundle_is_corrected_and_other_fields_stay(
    admin: Administrator, start: Start
) -> None:
    others = mutating_configuration(NOWHERE, name="kai-00-other", ca_bundle=b"theirs")
    async with configured(admin.client, *configurations(NOWHERE), others):
        replica = await start()
        await until_ready(replica)
        ca = (await secret(admin))["ca.crt"]
        await until_trusted(admin, ca)
        kept = await admin.read(MUTATING)
        theirs = authority(age=timedelta(0), lifetime=timedelta(days=1)).pair.certificate_pem
        for text, expected in ((b"garbage", [ca]), (b"", [ca]), (theirs, [theirs, ca])):
            await overwrite(admin, text)
            await until_trusted(admin, *expected, most=1)
            assert (await replica.get("/readyz"))[0] == 200
        after = await admin.read(MUTATING)
        for configuration in (kept, after):
            del configuration["webhooks"][0]["clientConfig"]["caBundle"]
        assert after["webhooks"] == kept["webhooks"]
        other = await admin.read(MUTATING.replace(CONFIGURATION_NAME, "kai-00-other"))
        assert base64.b64decode(other["webhooks"][0]["clientConfig"]["caBundle"]) == b"theirs"
        assert other["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("lacking", "part", "problem"),
    [(RIGHTS[1:3], "caBundle", "cannot list resource"), (RIGHTS[3:], "caBundle", "cannot patch resource")],
    ids=["list", "patch"],
)
async def test_a_missing_permission_is_named_and_the_replica_is_not_ready(
    admin: Administrator, start: Start, lacking: tuple[dict[str, Any], ...], part: str, problem: str
) -> None:
    async with configured(admin.client, *configurations(NOWHERE)):
        replica = await start(rights=tuple(rule for rule in RIGHTS if rule not in lacking))
        trouble = await until(
            lambda: [line for line in replica.logged("certificate problem") if problem in line["problem"]],
            problem,
        )
        assert trouble[0]["part"] == part
        assert "webhookconfigurations" in trouble[0]["problem"]
        status, text = await replica.get("/readyz")
        assert status == 503
        assert problem in text
        await until_failed(replica)


async def overwrite(admin: Administrator, bundle: bytes) -> None:
    """Write the first bundle of the mutating configuration as another program would."""
    value = base64.b64encode(bundle).decode()
    patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": value}]
    body, kind = json.dumps(patch).encode(), "application/json-patch+json"
    await admin.client.request("PATCH", MUTATING, body=body, content_type=kind)


async def test_a_repeated_overwrite_of_the_bundle_is_reported_and_not_fought(
    admin: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("certs.ca_injector._SECONDS_A_PATCH", 3.0)
    ca = authority(age=timedelta(0), lifetime=timedelta(days=1)).pair.certificate_pem
    troubles: list[str] = []
    woken = asyncio.Event()
    ca_injector = CABundleInjector(
        admin.client, name=CONFIGURATION_NAME, on_change=woken.set, on_trouble=troubles.append
    )

    async def keep() -> None:
        while True:
            woken.clear()
            again = await ca_injector.reconcile([ca], now=datetime.now(UTC))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), again)

    async with configured(admin.client, *configurations(NOWHERE)):
        annotation = {"cert-manager.io/inject-ca-from": "kaishare/theirs"}
        await admin.merge(MUTATING, {"metadata": {"annotations": annotation}})
        tasks = [asyncio.create_task(ca_injector.run()), asyncio.create_task(keep())]
        try:
            await until_trusted(admin, ca)
            while not any(troubles):
                await overwrite(admin, b"theirs")
                await asyncio.sleep(0.05)
            problem = "mutatingwebhookconfigurations kai-00-kaishare: its caBundle is overwritten repeatedly: its annotation cert-manager.io/inject-ca-from makes another controller write it"
            assert next(filter(None, troubles)) == problem
            changes = (await admin.read(MUTATING))["metadata"]["generation"]
            await asyncio.sleep(0.5)
            assert (await admin.read(MUTATING))["metadata"]["generation"] == changes
            await until_trusted(admin, ca)
            await until(lambda: troubles[-1] == "", "the problem has ended")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_certificates_do_not_depend_on_the_local_clock(admin: Administrator, start: Start) -> None:
    leaves: list[Leaf] = []
    troubles: list[tuple[str, str]] = []
    replica = CertificateManager(
        admin.client, namespace=NAMESPACE, secret="kaishare-webhook-ca", configuration=CONFIGURATION_NAME,
        names=["localhost"], lifetimes=Lifetimes(),
        on_leaf=lambda leaf, _reason: leaves.append(leaf),
        on_trouble=lambda part, problem: troubles.append((part, problem)),
        wall_clock=lambda: time.time() + 5 * 365 * 86400,
    )  # fmt: skip
    task = asyncio.create_task(replica.run())
    try:
        async with configured(admin.client, *configurations(NOWHERE)):
            await until(lambda: leaves and not replica.problem, "it is trusted")
    finally:
        task.cancel()
        await asyncio.wait([task])
    ((_, problem),) = [trouble for trouble in troubles if trouble[0] == "clock"]
    assert problem.startswith("this machine's clock is 1576")
    assert problem.endswith(" s ahead of the API server's: correct it")
    in_a_week = datetime.now(UTC) + timedelta(days=7)
    assert abs(leaves[0].pair.not_after - in_a_week) < timedelta(minutes=1)
