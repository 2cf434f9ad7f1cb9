"""A Kubernetes API server of the tests' own: the real one on loopback, with its store, and nobody else in the cluster.

::

    etcd ◄── kube-apiserver ◄─┬─ kube.admin, kube.kubectl(…)         a certificate of system:masters
     in a folder that goes    └─ account.client, account.kubeconfig   a token, and the rights that its rules give
                                 (kube-controller-manager, scheduler and kubelet do not run: nothing but the test acts)

For tests, from `conftest.py`:

- `kube` (the session's `Cluster`; skips where nothing is built): `admin`, `kubectl`, `apply`, `account`,
  `kubeconfig`, `away`.
- `namespace` (a fresh one for each test, with its `default` account): its name.

What follows from nobody else being there: a Deployment makes no pod, a deleted namespace stays `Terminating`, an owner
that is deleted takes nothing with it, and no EndpointSlice is made for a Service.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from ssl import create_default_context
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kubernetes import client as api

from tests.conftest import ROOT, Run
from tests.deploy.prometheus import free_port
from tests.serve.test_access import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

START_S = 60
CALL_S = 30
SOURCES = ROOT / "tests/kube/server"


def binaries() -> Path:
    """Where kube-apiserver, etcd and kubectl are, or a skip that says how to get them.

    `HISPARSE_KUBE` names another folder than target/kube, which `tests/kube/server/build FOLDER` made.
    """
    folder = Path(os.environ.get("HISPARSE_KUBE", ROOT / "target/kube"))
    stamp = folder / "stamp"
    if not stamp.is_file():
        pytest.skip(f"no kube-apiserver in {folder}: run make test-kube, which builds it")
    sources = hashlib.sha256(b"".join((SOURCES / name).read_bytes() for name in ("go.mod", "go.sum", "build")))
    if stamp.read_text(encoding="utf-8").splitlines()[0] != f"# {sources.hexdigest()}":
        pytest.skip(f"the kube-apiserver in {folder} is of another version: run make test-kube, which builds it anew")
    return folder


class Ended(Exception):
    """A program of the cluster ended by itself, or was not ready in time; with what it said."""


@dataclass(frozen=True)
class Account:
    """A service account and a token of it, as a pod would have."""

    namespace: str
    name: str
    token: str
    client: api.ApiClient
    kubeconfig: Path


@dataclass
class Cluster:
    """A running API server."""

    folder: Path
    programs: Path
    url: str = ""
    admin: api.ApiClient = field(init=False, repr=False)
    """May do everything."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    clients: list[api.ApiClient] = field(default_factory=list)
    _flags: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _made: int = 0

    def start(self) -> Cluster:
        """Make certificates, start etcd and the API server, and wait until it is ready."""
        authority = Authority(self.folder).begin()
        authority.issue("server", "IP:127.0.0.1,DNS:localhost", "/CN=kube-apiserver")
        authority.issue("admin", "DNS:admin", "/O=system:masters/CN=admin")
        authority.issue("accounts", "DNS:accounts", "/CN=service-accounts")  # whose key signs tokens
        for more in (True, True, False):
            self._choose_ports()
            try:
                for program in self._flags:
                    self._run(program)
                self._wait_until_ready()
                break
            except Ended as failure:
                for program in list(self.processes):
                    self._end(program)
                if "address already in use" not in str(failure) or not more:  # another process was faster
                    raise
        self.admin = self.client()
        return self

    def _choose_ports(self) -> None:
        store, peers, port = (free_port() for _ in range(3))
        self.url = f"https://127.0.0.1:{port}"
        self._flags = {
            "etcd": (
                f"--data-dir={self.folder}/etcd-{store}",
                f"--listen-client-urls=http://127.0.0.1:{store}",
                f"--advertise-client-urls=http://127.0.0.1:{store}",
                f"--listen-peer-urls=http://127.0.0.1:{peers}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
                f"--initial-cluster=default=http://127.0.0.1:{peers}",
                "--unsafe-no-fsync",  # what is stored need not outlive the test
            ),
            "kube-apiserver": (
                f"--etcd-servers=http://127.0.0.1:{store}",
                *("--bind-address=127.0.0.1", f"--secure-port={port}", "--advertise-address=127.0.0.1"),
                "--endpoint-reconciler-type=none",  # that address is none for endpoints
                *(f"--tls-cert-file={self.folder}/server.pem", f"--tls-private-key-file={self.folder}/server.key"),
                f"--client-ca-file={self.folder}/ca.pem",
                "--authorization-mode=RBAC",
                "--allow-privileged=true",  # as clusters have it: what forbids it is a namespace's pod security level
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self.folder}/accounts.pem",
                f"--service-account-signing-key-file={self.folder}/accounts.key",
                *("--service-cluster-ip-range=10.96.0.0/16", "--profiling=false"),
            ),
        }

    def _run(self, program: str) -> None:
        # A tester that is killed takes them along, where there is a setpriv to say so.
        bound = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
        command = [*bound, str(self.programs / program), *self._flags[program]]
        with (self.folder / f"{program}.log").open("ab") as log:
            self.processes[program] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def _wait_until_ready(self) -> None:
        trust = create_default_context(cafile=str(self.folder / "ca.pem"))
        trust.load_cert_chain(self.folder / "admin.pem", self.folder / "admin.key")
        until = time.monotonic() + START_S
        last = "no answer"
        while time.monotonic() < until:
            for program, process in self.processes.items():
                if process.poll() is not None:
                    raise Ended(f"{program} ended with {process.returncode}: {self.said()}")
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=trust):
                    return
            except OSError as failure:
                last = str(failure)
            time.sleep(0.2)
        raise Ended(f"the API server was not ready within {START_S} s ({last}): {self.said()}")

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The API server killed for as long as this is entered; its store stays, so afterwards all is as it was."""
        self._end("kube-apiserver")
        try:
            yield
        finally:
            self._run("kube-apiserver")
            self._wait_until_ready()

    def _end(self, program: str) -> None:
        process = self.processes.pop(program)
        process.kill()  # asked to stop it would wait for every watch that is open
        process.wait()

    def said(self) -> str:
        """The last lines of what the programs said."""
        return "\n".join(
            line
            for log in sorted(self.folder.glob("*.log"))
            for line in log.read_text(errors="replace").splitlines()[-8:]
        )

    def close(self) -> None:
        """End clients and programs, the API server before its store."""
        for each in self.clients:
            each.close()
            each.rest_client.pool_manager.clear()
        for program in reversed(list(self.processes)):
            self._end(program)

    def client(self, token: str | None = None) -> api.ApiClient:
        """A client with a token, or else with the administrator's certificate; closed with the cluster."""
        settings = api.Configuration(host=self.url)
        settings.ssl_ca_cert = str(self.folder / "ca.pem")
        if token is None:
            settings.cert_file, settings.key_file = (str(self.folder / f"admin.{kind}") for kind in ("pem", "key"))
        else:
            settings.api_key = {"authorization": f"Bearer {token}"}
        self.clients.append(api.ApiClient(settings))
        return self.clients[-1]

    def kubeconfig(self, token: str | None = None, namespace: str = "default") -> Path:
        """A file for `KUBECONFIG`: with a token, or else the administrator's."""
        user = {"token": token}
        if token is None:
            user = {"client-certificate": f"{self.folder}/admin.pem", "client-key": f"{self.folder}/admin.key"}
        where = {"server": self.url, "certificate-authority": f"{self.folder}/ca.pem"}
        self._made += 1
        path = self.folder / f"kubeconfig-{self._made}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": where}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        path.chmod(0o600)
        return path

    def kubectl(
        self, *arguments: str, stdin: str | None = None, account: Account | None = None, namespace: str = "default"
    ) -> Run:
        """Run kubectl as the administrator or as an account; the caller looks at the code.

        `namespace` is for what names none, as the context of a kubeconfig is; an account's is its own.
        """
        config = account.kubeconfig if account else self.kubeconfig(namespace=namespace)
        done = subprocess.run(
            [str(self.programs / "kubectl"), f"--kubeconfig={config}", f"--request-timeout={CALL_S}s", *arguments],
            env={"HOME": str(self.folder), "PATH": os.environ["PATH"]},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=2 * CALL_S,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def apply(self, *documents: dict[str, Any], namespace: str = "default", dry_run: bool = False) -> Run:
        """Apply documents on the server's side, under strict validation."""
        flags = ("--server-side", "--validate=strict", "--filename=-", *(("--dry-run=server",) if dry_run else ()))
        return self.kubectl("apply", *flags, stdin=yaml.safe_dump_all(documents), namespace=namespace)

    def namespace(self, **labels: str) -> str:
        """Make a namespace and its `default` account, which a controller would have made."""
        self._made += 1
        name = f"test-{self._made}"
        core = api.CoreV1Api(self.admin)
        core.create_namespace({"metadata": {"name": name, "labels": labels}})
        core.create_namespaced_service_account(name, {"metadata": {"name": "default"}})
        return name

    def account(self, namespace: str, name: str, rules: Sequence[dict[str, Any]] = ()) -> Account:
        """Make a service account with a Role of these rules in its namespace, and ask for a token of it (TokenRequest).

        An account that manifests made already, with their own Role, is left as it is and only given a token.
        """
        core, rbac = api.CoreV1Api(self.admin), api.RbacAuthorizationV1Api(self.admin)
        metadata = {"metadata": {"name": name}}
        try:
            core.create_namespaced_service_account(namespace, metadata)
        except api.ApiException as failure:
            if failure.status != 409:
                raise
        if rules:
            subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
            rbac.create_namespaced_role(namespace, {**metadata, "rules": list(rules)})
            rbac.create_namespaced_role_binding(namespace, {**metadata, "subjects": [subject], "roleRef": role})
            self._wait_until_granted(namespace, name, rules[0])
        asked = {"spec": {"expirationSeconds": 3600}}
        token = core.create_namespaced_service_account_token(name, namespace, asked).status.token
        return Account(namespace, name, token, self.client(token), self.kubeconfig(token, namespace))

    def _wait_until_granted(self, namespace: str, name: str, rule: dict[str, Any]) -> None:
        """The authorizer watches roles, and so learns of one a little after it is made."""
        resource, _, subresource = rule["resources"][0].partition("/")
        wanted = {"group": rule["apiGroups"][0], "resource": resource, "subresource": subresource}
        who = f"system:serviceaccount:{namespace}:{name}"
        asked = {"user": who, "resourceAttributes": {**wanted, "verb": rule["verbs"][0], "namespace": namespace}}
        until = time.monotonic() + CALL_S
        while not api.AuthorizationV1Api(self.admin).create_subject_access_review({"spec": asked}).status.allowed:
            assert time.monotonic() < until, f"{who} was not granted {rule}"
            time.sleep(0.02)
