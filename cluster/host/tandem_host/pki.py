"""Keys and certificates of a cluster: three authorities and one leaf a component.

Everything is ECDSA P-256 (issuing the lot takes some milliseconds). etcd and the
front proxy have authorities of their own, so that a pod's or the kubelet's certificate
opens neither the database nor the door of aggregated API servers.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem_host.layout import Layout
from tandem_host.settings import API_SERVICE_IP, CLUSTER_DOMAIN, NODE_NAME, Settings

CLUSTER_CA = "ca"
ETCD_CA = "etcd-ca"
FRONT_PROXY_CA = "front-proxy-ca"

_AUTHORITY_LIFE = dt.timedelta(days=3650)
_LEAF_LIFE = dt.timedelta(days=365)
#: A leaf with less than this to live is issued anew by the next `up`.
_LEAF_MARGIN = dt.timedelta(days=30)
#: Clocks of containers and hosts differ a little.
_BACKDATE = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One certificate: what it is called, who signs it, and the names it may use."""

    name: str
    common_name: str
    authority: str = CLUSTER_CA
    groups: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    hostnames: tuple[str, ...] = ()


def leaves(settings: Settings) -> list[Leaf]:
    """Return every certificate that a cluster needs."""
    here = tuple(sorted({"127.0.0.1", settings.address}))
    api_names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    return [
        Leaf("etcd", "etcd", ETCD_CA, (), here, ("localhost",)),
        Leaf("etcd-client", "kube-apiserver", ETCD_CA),
        Leaf(
            "kube-apiserver",
            "kube-apiserver",
            addresses=(*here, API_SERVICE_IP),
            hostnames=("localhost", *api_names, f"{api_names[-1]}.{CLUSTER_DOMAIN}"),
        ),
        # Group `system:masters` passes RBAC before any role exists.
        Leaf("kubelet-client", "kube-apiserver-kubelet-client", groups=("system:masters",)),
        Leaf("front-proxy", "front-proxy", FRONT_PROXY_CA),
        Leaf("admin", "admin", groups=("system:masters",)),
        Leaf(
            "kube-controller-manager", "system:kube-controller-manager",
            addresses=here, hostnames=("localhost",),
        ),
        Leaf(
            "kube-scheduler", "system:kube-scheduler", addresses=here, hostnames=("localhost",)
        ),
        Leaf("kube-proxy", "system:kube-proxy"),
        Leaf(
            "kubelet", f"system:node:{NODE_NAME}", groups=("system:nodes",),
            addresses=here, hostnames=(NODE_NAME,),
        ),
    ]  # fmt: skip


def ensure(settings: Settings) -> None:
    """Make every key and certificate that is missing, broken or about to expire.

    What is sound is left as it is: a leaf that was deleted is issued anew by the same
    authority. A lost authority is made anew too, and then so are its leaves.
    """
    layout = Layout(settings.state)
    layout.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    authorities = {
        name: _ensure_authority(layout, name) for name in (CLUSTER_CA, ETCD_CA, FRONT_PROXY_CA)
    }
    for leaf in leaves(settings):
        _ensure_leaf(layout, leaf, *authorities[leaf.authority])
    _ensure_service_account(layout)


def has_authorities(layout: Layout) -> bool:
    """Return whether what signs certificates and tokens is there and can be read.

    Without it nothing that was issued before is of use: the cluster has to start anew.
    """
    try:
        for name in (CLUSTER_CA, ETCD_CA, FRONT_PROXY_CA):
            _load_cert(layout.cert(name))
            _load_key(layout.key(name))
        _load_key(layout.service_account_key)
    except (OSError, ValueError, TypeError):
        return False
    return True


def fingerprint(paths: Sequence[Path]) -> str:
    """Return one hash over some files; a missing one counts as empty."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _ensure_authority(
    layout: Layout, name: str
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        return _load_cert(layout.cert(name)), _load_key(layout.key(name))
    except (OSError, ValueError, TypeError):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tandem-{name}")])
        cert = (
            _builder(subject, subject, key.public_key(), _AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        _write_pair(layout, name, cert, key)
        return cert, key


def _ensure_leaf(
    layout: Layout, leaf: Leaf, ca_cert: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey
) -> None:
    wanted = _names(leaf)
    try:
        cert = _load_cert(layout.cert(leaf.name))
        _load_key(layout.key(leaf.name))
        cert.verify_directly_issued_by(ca_cert)
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        fresh = cert.not_valid_after_utc > dt.datetime.now(dt.UTC) + _LEAF_MARGIN
        if fresh and names == wanted:
            return
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        pass  # Missing or not one of ours: issued anew below.
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in leaf.groups]
        + [x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name)]
    )
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    cert = (
        _builder(subject, ca_cert.subject, key.public_key(), _LEAF_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(wanted, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    _write_pair(layout, leaf.name, cert, key)


def _ensure_service_account(layout: Layout) -> None:
    try:
        key = _load_key(layout.service_account_key)
    except (OSError, ValueError, TypeError):
        key = ec.generate_private_key(ec.SECP256R1())
        _write(layout.service_account_key, _private_pem(key), 0o600)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    path = layout.service_account_public
    if not path.is_file() or path.read_bytes() != public:
        _write(path, public, 0o644)


def _names(leaf: Leaf) -> x509.SubjectAlternativeName:
    # A client's certificate carries its own name too: an empty list is not allowed.
    hostnames = leaf.hostnames or (leaf.name,)
    return x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(address)) for address in leaf.addresses]
        + [x509.DNSName(name) for name in hostnames]
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=authority,
        crl_sign=authority, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + life)
    )


def _load_cert(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path} holds no elliptic curve key")
    return key


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # SEC 1 ("EC PRIVATE KEY"): the one form that all of Kubernetes' readers take.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _write_pair(
    layout: Layout, name: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    _write(layout.key(name), _private_pem(key), 0o600)
    _write(layout.cert(name), cert.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file whole or not at all, with its mode from the first byte on."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    draft.replace(path)
