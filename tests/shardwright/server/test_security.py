"""Mutual TLS: who has no valid certificate gets no byte of an answer."""

import socket
import ssl

import pytest

from shardwright.ir.errors import OptionError, ShardwrightWarning
from shardwright.server.callers import Caller
from shardwright.server.certificates import make_certificates, self_signed
from shardwright.server.messages import message
from shardwright.server.security import PLAIN, Security, security_of
from shardwright.server.transport import CallError, Connection
from tests.shardwright.server.runs import needs_grpc, running, table, task

pytestmark = needs_grpc


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return folders with certificates: of us, of others, and of us but expired."""
    root = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "foreign"):
        make_certificates(root / name, server_password="s", client_password="c")
    make_certificates(root / "expired", days=-1)
    return root


def ours(folders, **changed):
    paths = {
        "server_cert_path": folders / "ours/server.p12",
        "client_cert_path": folders / "ours/client.p12",
        "ca_cert_path": folders / "ours/ca.crt",
        "cert_expire_warning_time_in_day": 1,
    }
    return security_of({**paths, **changed}, "s", "c")


def identity(path):
    """Return the key and the certificate of a PEM file without a password, as `Security` has."""
    return path.read_bytes(), path.read_bytes()


def called(address, security):
    connection = Connection("Scheduler", address, security, Caller.joining(b""))
    try:
        return connection.call("Join", message("Member", role="MS_WORKER"), 3.0)
    finally:
        connection.close()


def test_a_run_with_certificates(folders):
    with running(1, 1, ours(folders)) as run:
        client = run.worker(task(table("w", (4,), "ones")))
        assert client.pull([0])[0].tolist() == [1, 1, 1, 1]
        client.close()
        client.member.leave()


def test_without_a_valid_certificate_nobody_gets_a_byte(folders):
    mine = ours(folders)
    foreign = security_of(folders / "foreign/security.json", "s", "c")
    expired = identity(folders / "expired/client.pem")
    alone = self_signed()
    (folders / "alone.pem").write_bytes(alone)
    strangers = {
        "self-signed": Security(mine.authority, connection=(alone, alone)),
        "none": Security(mine.authority, connection=(None, None)),
        "foreign": Security(mine.authority, connection=foreign.connection),
        "a server's": Security(mine.authority, connection=mine.service),
        "expired": Security(mine.authority, connection=expired),
        "plain": PLAIN,
        "trusts others": Security(foreign.authority, connection=mine.connection),
    }
    with running(1, 1, mine) as run:
        for name, security in strangers.items():
            with pytest.raises(CallError) as caught:
                called(run.address, security)
            assert caught.value.is_lost, f"{name}: {caught.value}"
        with pytest.raises(CallError, match="expects 0 servers"):
            called(run.address, mine)  # with a certificate, it is answered
        assert received(run.address, None, folders) == b""
        assert received(run.address, folders / "alone.pem", folders) == b""
        assert received(run.address, folders / "expired/client.pem", folders) == b""
        assert received(run.address, None, folders, greeting=b"GET / HTTP/1.1\r\n\r\n") == b""


def received(
    address, certificate, folders, greeting=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
):
    """Return what a service sends over TLS to somebody without a valid certificate."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=folders / "ours/ca.crt")
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate)
    found = b""
    try:
        raw = socket.create_connection((host, int(port)), 5)
        with raw, context.wrap_socket(raw, server_hostname=host) as stream:
            stream.sendall(greeting)
            while part := stream.recv(4096):
                found += part
    except (ssl.SSLError, OSError):
        pass
    return found


def test_certificates_that_others_would_refuse_are_refused_at_once(folders):
    with pytest.raises(OptionError, match="not signed by the authority"):
        ours(folders, ca_cert_path=folders / "foreign/ca.crt")
    with pytest.raises(OptionError, match=r"is valid from .* not now"):
        security_of(folders / "expired/security.json", "", "")
    with pytest.raises(OptionError, match=r"cannot be read.*check the password"):
        security_of(folders / "ours/security.json", "wrong", "c")
    with pytest.raises(OptionError, match="`client_cert_path` is None, expected the path"):
        ours(folders, client_cert_path=None)
    with pytest.raises(OptionError, match="has no setting `ca_path`"):
        ours(folders, ca_path="x")
    with pytest.raises(OptionError, match="`crl_path` is the text `x`, expected none"):
        ours(folders, crl_path="x")
    with pytest.raises(OptionError, match="names `ROT13`, which is no cipher"):
        ours(folders, cipher_list="ROT13")


def test_a_warning_before_certificates_expire(folders):
    with pytest.warns(ShardwrightWarning, match=r"\.p12` expires on \d{4}-\d\d-\d\d"):
        ours(folders, cert_expire_warning_time_in_day=400)


def test_pem_is_read_as_pkcs12_is(folders):
    pem = ours(
        folders,
        server_cert_path=folders / "ours/server.pem",
        client_cert_path=folders / "ours/client.pem",
    )
    store = ours(folders)
    assert pem.connection[0] == store.connection[0]
    assert pem.connection[1] in store.connection[1]
    assert "key" not in repr(store).lower()
