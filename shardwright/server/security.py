"""Encryption of messages: mutual TLS, with certificates on both sides.

A service demands a certificate of every caller, and a caller one of the service for the host that
it calls; both must be signed by the one authority, and be within their time.
"""

import json
import os
import ssl
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shardwright.ir.errors import ModelError, OptionError, ShardwrightWarning
from shardwright.ir.optional import optional
from shardwright.ir.values import NOT_NEGATIVE, check_names, wrong_value
from shardwright.server.messages import EXTRA

_NEED = "encryption of messages"
_CODING = "cryptography.hazmat.primitives.serialization"
_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_SETTINGS: dict[str, Any] = {
    "server_cert_path": None,
    "client_cert_path": None,
    "ca_cert_path": None,
    "crl_path": "",
    "cipher_list": "",
    "cert_expire_warning_time_in_day": 90,
}
_PATHS = ("server_cert_path", "client_cert_path", "ca_cert_path")


@dataclass(frozen=True)
class Security:
    """How the messages of a process are encrypted; by default not at all.

    Parameters
    ----------
    authority : bytes
        Certificates of those who may sign others, in PEM.
    service, connection : tuple of bytes
        Private key and certificates of this process where it answers calls, and where it makes
        them, in PEM.
    """

    authority: bytes = b""
    service: tuple[bytes, bytes] = (b"", b"")
    connection: tuple[bytes, bytes] = (b"", b"")

    def __repr__(self) -> str:
        return f"<Security: {'mutual TLS' if self.is_on else 'none'}>"  # keys are not shown

    @property
    def is_on(self) -> bool:
        """Whether messages are encrypted."""
        return bool(self.authority)

    def of_services(self) -> Any:
        """Return gRPC's credentials of a service, which demands certificates of its callers."""
        grpc = optional("grpc", extra=EXTRA, need=_NEED)
        return grpc.ssl_server_credentials([self.service], self.authority, True)

    def of_connections(self) -> Any:
        """Return gRPC's credentials of a connection."""
        grpc = optional("grpc", extra=EXTRA, need=_NEED)
        return grpc.ssl_channel_credentials(self.authority, *self.connection)

    def of_sockets(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return the contexts of connections that others make, and of own ones."""
        contexts = []
        for kind, own in (
            (ssl.PROTOCOL_TLS_SERVER, self.service),
            (ssl.PROTOCOL_TLS_CLIENT, self.connection),
        ):
            context = ssl.SSLContext(kind)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.authority.decode())
            if ciphers := os.environ.get(_VARIABLE):
                context.set_ciphers(ciphers)
            with _in_memory(b"\n".join(own)) as path:
                context.load_cert_chain(path)
            contexts.append(context)
        contexts[0].num_tickets = 0  # nobody reads them: a connection is read on one side
        return contexts[0], contexts[1]


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give a name to a file that is in memory alone: a key is never written to a folder.

    Raises
    ------
    ModelError
        If the system has no such files; Linux has them.
    """
    if not hasattr(os, "memfd_create"):
        raise ModelError(
            "`enable_ssl` needs files in memory, which this system does not have",
            hint="encrypted processes run on Linux",
        )
    with os.fdopen(os.memfd_create("key"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


PLAIN = Security()


def security_of(
    given: Mapping[str, Any] | str | Path, server_password: str, client_password: str
) -> Security:
    """Return the encryption that a configuration describes.

    Parameters
    ----------
    given : mapping or path
        The configuration, or a file with it in JSON: ``server_cert_path``, ``client_cert_path``
        (PKCS#12, or PEM with the key), ``ca_cert_path`` (PEM), ``cipher_list`` (of TLS 1.2, by the
        names of OpenSSL), ``cert_expire_warning_time_in_day``.
    server_password, client_password : str
        Passwords of the two files; empty for none.

    Raises
    ------
    OptionError
        If the configuration is wrong, or a certificate cannot be used.
    """
    settings = {**_SETTINGS, **_configuration(given)}
    for name in _PATHS:
        if not isinstance(settings[name], str | Path) or not Path(settings[name]).is_file():
            raise wrong_value(name, settings[name], "the path of a file")
    if settings["crl_path"]:
        raise wrong_value("crl_path", settings["crl_path"], "none: lists are not supported")
    days = settings["cert_expire_warning_time_in_day"]
    NOT_NEGATIVE.check("cert_expire_warning_time_in_day", days)
    _set_ciphers(settings["cipher_list"])
    authority = Path(settings["ca_cert_path"]).read_bytes()
    identities = [
        _identity(Path(settings[name]), password, authority, float(days))
        for name, password in (
            ("server_cert_path", server_password),
            ("client_cert_path", client_password),
        )
    ]
    return Security(authority, *identities)


def _configuration(given: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        path = Path(given)
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise OptionError(
                f"the configuration of TLS cannot be read: {error}", str(path)
            ) from None
        if not isinstance(given, dict):
            raise OptionError("the configuration of TLS is no object in JSON", str(path))
        folder = path.parent
        given = {n: str(folder / v) if n in _PATHS and v else v for n, v in given.items()}
    check_names("the configuration of TLS has no setting", given, tuple(_SETTINGS))
    return given


# Ciphers


def _set_ciphers(text: object) -> None:
    """Let gRPC use some ciphers only, where TLS 1.2 is spoken.

    Raises
    ------
    OptionError
        If there is no such cipher, or gRPC uses others already.
    """
    if not text:
        return
    if not isinstance(text, str):
        raise wrong_value("cipher_list", text, "names of ciphers between colons")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in text.split(":"):
        try:
            context.set_ciphers(name)
        except ssl.SSLError:
            raise OptionError(
                f"`cipher_list` names `{name}`, which is no cipher",
                hint="write names of OpenSSL: `ECDHE-ECDSA-AES128-GCM-SHA256`",
            ) from None
    before = os.environ.setdefault(_VARIABLE, text)
    if before != text:
        raise OptionError(
            f"`cipher_list` is the text `{text}`, and this process uses `{before}`",
            hint="give one list in a process",
        )


# Certificates


def _identity(path: Path, password: str, authority: bytes, days: float) -> tuple[bytes, bytes]:
    """Return the private key and the certificates in a file, in PEM without a password."""
    key, chain = _read(path, password)
    x509 = optional("cryptography.x509", extra=EXTRA, need=_NEED)
    coding = optional(_CODING, extra=EXTRA, need=_NEED)
    own = chain[0]
    if own.public_key() != key.public_key():
        raise OptionError("the key and the certificate do not belong together", str(path))
    _check_time(own, path, days)
    _check_signed(chain, x509.load_pem_x509_certificates(authority), path)
    pem = coding.Encoding.PEM
    unlocked = key.private_bytes(pem, coding.PrivateFormat.PKCS8, coding.NoEncryption())
    return unlocked, b"".join(item.public_bytes(pem) for item in chain)


def _read(path: Path, password: str) -> tuple[Any, list[Any]]:
    """Return the private key in a file, and the certificates, the own one first."""
    x509 = optional("cryptography.x509", extra=EXTRA, need=_NEED)
    coding = optional(_CODING, extra=EXTRA, need=_NEED)
    stores = optional(f"{_CODING}.pkcs12", extra=EXTRA, need=_NEED)
    data, secret = path.read_bytes(), password.encode() or None
    try:
        if b"-----BEGIN" in data:
            return (
                coding.load_pem_private_key(data, secret),
                x509.load_pem_x509_certificates(data),
            )
        store = stores.load_pkcs12(data, secret)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"the certificate cannot be read: {error}", str(path), "check the password"
        ) from None
    if store.key is None or store.cert is None:
        raise OptionError("there is no private key with its certificate", str(path))
    others = [item.certificate for item in store.additional_certs]
    return store.key, [store.cert.certificate, *others]


def _check_time(certificate: Any, path: Path, days: float) -> None:
    """Refuse a certificate out of its time, and warn of its end."""
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if not certificate.not_valid_before_utc <= now <= end:
        raise OptionError(
            f"the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{end:%Y-%m-%d}, not now",
            str(path),
            "replace it",
        )
    if end - now < timedelta(days=days):
        message = f"the certificate `{path}` expires on {end:%Y-%m-%d}"
        warnings.warn(message, ShardwrightWarning, stacklevel=2)


def _check_signed(chain: list[Any], authorities: list[Any], path: Path) -> None:
    """Refuse a certificate that others would refuse: one that no authority has signed."""
    own, *others = chain
    while not any(_has_signed(authority, own) for authority in authorities):
        signers = [other for other in others if _has_signed(other, own)]
        if not signers:
            raise OptionError(
                "the certificate is not signed by the authority of `ca_cert_path`", str(path)
            )
        own = signers[0]
        others.remove(own)


def _has_signed(signer: Any, certificate: Any) -> bool:
    exceptions = optional("cryptography.exceptions", extra=EXTRA, need=_NEED)
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, exceptions.InvalidSignature):
        return False
    return True
