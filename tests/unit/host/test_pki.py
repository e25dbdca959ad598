"""Keys and certificates: made once, repaired one by one."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509

from tandem_host import pki
from tandem_host.layout import Layout
from tandem_host.settings import API_SERVICE_IP, Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(state=tmp_path, bin=tmp_path / "bin", checkout=tmp_path)
    pki.ensure(made)
    return made


def contents(layout: Layout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in layout.pki.iterdir()}


def cert(layout: Layout, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(layout.cert(name).read_bytes())


def test_a_second_time_changes_nothing(settings: Settings) -> None:
    layout = Layout(settings.state)
    before = contents(layout)
    pki.ensure(settings)
    assert contents(layout) == before
    assert pki.has_authorities(layout)


def test_keys_can_be_read_by_their_owner_only(settings: Settings) -> None:
    keys = list(Layout(settings.state).pki.glob("*.key"))
    assert len(keys) == len(pki.leaves(settings)) + 4
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


@pytest.mark.parametrize("damage", ["delete certificate", "delete key", "break", "expire"])
def test_a_damaged_leaf_is_issued_anew_and_nothing_else(
    settings: Settings, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(settings.state)
    match damage:
        case "delete certificate":
            layout.cert("kubelet").unlink()
        case "delete key":
            layout.key("kubelet").unlink()
        case "break":
            layout.cert("kubelet").write_text("no certificate")
        case _:
            monkeypatch.setattr(pki, "_LEAF_LIFE", dt.timedelta(days=29))
            layout.cert("kubelet").unlink()
            pki.ensure(settings)
            monkeypatch.undo()
    before = contents(layout)
    pki.ensure(settings)
    after = contents(layout)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"kubelet.crt", "kubelet.key"}
    cert(layout, "kubelet").verify_directly_issued_by(cert(layout, "ca"))


def test_a_lost_authority_renews_its_leaves_and_no_others(settings: Settings) -> None:
    layout = Layout(settings.state)
    before = contents(layout)
    layout.key(pki.ETCD_CA).unlink()
    assert not pki.has_authorities(layout)
    pki.ensure(settings)
    after = contents(layout)
    changed = {Path(name).stem for name in after if after[name] != before[name]}
    assert changed == {"etcd-ca", "etcd", "etcd-client"}


def test_a_lost_token_key_counts_as_a_lost_authority(settings: Settings) -> None:
    layout = Layout(settings.state)
    layout.service_account_key.unlink()
    assert not pki.has_authorities(layout)
    public = layout.service_account_public.read_bytes()
    pki.ensure(settings)
    assert layout.service_account_public.read_bytes() != public


def test_the_api_servers_certificate_names_every_way_to_it(settings: Settings) -> None:
    found = cert(Layout(settings.state), "kube-apiserver")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}
    assert {"127.0.0.1", settings.address, API_SERVICE_IP} <= addresses
    hosts = names.get_values_for_type(x509.DNSName)
    assert {"localhost", "kubernetes.default.svc.cluster.local"} <= set(hosts)


def test_components_do_not_share_authorities(settings: Settings) -> None:
    layout = Layout(settings.state)
    issuers = {leaf.name: cert(layout, leaf.name).issuer for leaf in pki.leaves(settings)}
    assert issuers["etcd-client"] != issuers["kubelet"] != issuers["front-proxy"]
    masters = {leaf.name for leaf in pki.leaves(settings) if "system:masters" in leaf.groups}
    assert masters == {"admin", "kubelet-client"}
