"""Certificates to try encryption with: an authority, and one for each side, signed by it."""

import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shardwright.ir.errors import OutputError
from shardwright.ir.files.writing import failing_as
from shardwright.ir.optional import optional
from shardwright.server.messages import EXTRA

_WHAT = "the certificates"
_NEED = "making certificates"
_CODING = "cryptography.hazmat.primitives.serialization"


def make_certificates(
    folder: Path,
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    days: float = 365.0,
    server_password: str = "",
    client_password: str = "",
) -> tuple[Path, ...]:
    """Write certificates of a new authority into a folder, and return the files.

    ``ca.crt``; ``server.p12`` and ``client.p12``, the same in ``server.pem`` and ``client.pem``;
    ``security.json``, a configuration that names them. The key of the authority is forgotten.

    Parameters
    ----------
    folder : Path
        The folder; none of the files may be there.
    hosts : sequence of str
        Names and addresses of the hosts that answer calls.
    days : float
        How long they are valid; negative for certificates that have expired.
    server_password, client_password : str
        Passwords of the files with keys; empty for none.

    Raises
    ------
    OutputError
        If a file is there, or cannot be written.
    """
    files = _contents(hosts, days, {"server": server_password, "client": client_password})
    with failing_as(_WHAT, folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        if os.path.lexists(folder / name):
            raise OutputError(
                f"{_WHAT} cannot be written: there is a file already",
                str(folder / name),
                "name another folder",
            )
    for name, data in files.items():
        with failing_as(_WHAT, folder / name):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
    return tuple(folder / name for name in files)


def self_signed(host: str = "127.0.0.1", side: str = "client") -> bytes:
    """Return a key and a certificate that no authority has signed, in PEM: for tests."""
    coding = optional(_CODING, extra=EXTRA, need=_NEED)
    key = _new_key()
    own = _certificate(f"shardwright {side}", key, None, (host,), 30.0, side)
    private = key.private_bytes(
        coding.Encoding.PEM, coding.PrivateFormat.PKCS8, coding.NoEncryption()
    )
    found: bytes = private + own.public_bytes(coding.Encoding.PEM)
    return found


def _contents(hosts: Sequence[str], days: float, passwords: Mapping[str, str]) -> dict[str, bytes]:
    coding = optional(_CODING, extra=EXTRA, need=_NEED)
    stores = optional(f"{_CODING}.pkcs12", extra=EXTRA, need=_NEED)
    pem = coding.Encoding.PEM
    authority_key = _new_key()
    authority = _certificate("shardwright test authority", authority_key, None, (), abs(days))
    files = {"ca.crt": authority.public_bytes(pem)}
    for side, password in passwords.items():
        key = _new_key()
        signer = (authority_key, authority)
        certificate = _certificate(f"shardwright {side}", key, signer, hosts, days, side)
        secret = password.encode()
        lock = coding.BestAvailableEncryption(secret) if secret else coding.NoEncryption()
        private = key.private_bytes(pem, coding.PrivateFormat.PKCS8, lock)
        files[f"{side}.pem"] = private + certificate.public_bytes(pem)
        files[f"{side}.p12"] = stores.serialize_key_and_certificates(
            side.encode(), key, certificate, [authority], lock
        )
    configuration = {
        "server_cert_path": "server.p12",
        "client_cert_path": "client.p12",
        "ca_cert_path": "ca.crt",
        "cipher_list": "",
        "cert_expire_warning_time_in_day": 90,
    }
    files["security.json"] = json.dumps(configuration, indent=1).encode() + b"\n"
    return files


def _new_key() -> Any:
    curves = optional("cryptography.hazmat.primitives.asymmetric.ec", extra=EXTRA, need=_NEED)
    return curves.generate_private_key(curves.SECP256R1())


def _certificate(
    name: str,
    key: Any,
    signer: tuple[Any, Any] | None,
    hosts: Sequence[str],
    days: float,
    side: str = "",
) -> Any:
    """Return a certificate: of one side, or of the authority, which signs its own."""
    x509 = optional("cryptography.x509", extra=EXTRA, need=_NEED)
    hashes = optional("cryptography.hazmat.primitives.hashes", extra=EXTRA, need=_NEED)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    begin, end = sorted((now - timedelta(minutes=5), now + timedelta(days=days)))
    if days < 0:
        begin = end - timedelta(days=1 - days)
    builder = x509.CertificateBuilder(
        issuer_name=subject if signer is None else signer[1].subject,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=begin,
        not_valid_after=end,
    )
    builder = builder.add_extension(
        x509.BasicConstraints(ca=signer is None and not side, path_length=None), critical=True
    )
    if side:
        uses = {
            "server": x509.ExtendedKeyUsageOID.SERVER_AUTH,
            "client": x509.ExtendedKeyUsageOID.CLIENT_AUTH,
        }
        builder = builder.add_extension(x509.ExtendedKeyUsage([uses[side]]), critical=False)
        names = x509.SubjectAlternativeName([_host(x509, host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key if signer is None else signer[0], hashes.SHA256())


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
