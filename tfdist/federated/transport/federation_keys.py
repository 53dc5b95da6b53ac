"""The keys of a federation: the server's certificate, a signing key for each client, and the public list of both.

Three kinds of files, each JSON: `server.key` and `NAME.key` are secret, and only their owner can read them. The list,
`federation.json`, has the fingerprint of the server's certificate and the public key of every client. The server admits
only these clients; clients accept only this certificate, and in a secure sum only signatures of these clients.
"""

import datetime
import hashlib
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tfdist.errors import ConfigError, MissingFileError
from tfdist.storage.files import write_durably

SERVER_FILE = "server.key"
LIST_FILE = "federation.json"
_FORMAT = "tfdist federation 1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_YEARS = 20  # clients pin the certificate; its end would only stop them


@dataclass(frozen=True)
class Federation:
    """The public list of the parties that clients and server know."""

    fingerprint: str  # SHA-256 of the server's certificate, in hexadecimal digits
    clients: Mapping[str, bytes]  # name -> public key


@dataclass(frozen=True)
class ServerKey:
    """The server's certificate and its private key, as PEM."""

    certificate: str
    private: str = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate, in hexadecimal digits."""
        return fingerprint_of(ssl.PEM_cert_to_DER_cert(self.certificate))


@dataclass(frozen=True)
class ClientKey:
    """A client's name and its signing key."""

    name: str
    private: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> bytes:
        """The public key, for the list."""
        return self.private.public_key().public_bytes_raw()


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in DER, in hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def new_server_key() -> ServerKey:
    """Return a new private key, and a certificate that it signs itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tfdist federated server")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .sign(private, hashes.SHA256())
    )
    return ServerKey(
        certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        private=private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )


def make_client_key(folder: Path, name: str) -> ClientKey:
    """Make the key of a client and its file; an existing one is kept."""
    _checked_name(name)
    path = folder / f"{name}.key"
    if path.exists():
        return read_client_key(path)
    key = ClientKey(name, Ed25519PrivateKey.generate())
    _write(path, {"client": name, "private": key.private.private_bytes_raw().hex()}, secret=True)
    return key


def make_federation(folder: Path, clients: Mapping[str, bytes]) -> Federation:
    """Make the server's key if there is none, and add these clients to the list."""
    known = dict(read_federation(folder / LIST_FILE).clients) if (folder / LIST_FILE).exists() else {}
    for name, public in clients.items():
        _checked_name(name)
        if known.get(name, public) != public:
            raise ConfigError(
                f"client {name} is on the list of {folder} with another key. Remove it from {LIST_FILE} first, and "
                "give every client the new list.",
                name=name,
                path=folder / LIST_FILE,
            )
        known[name] = _checked_public(name, public)
    path = folder / SERVER_FILE
    if path.exists():
        server = read_server_key(path)
    else:
        server = new_server_key()
        _write(path, {"certificate": server.certificate, "private": server.private}, secret=True)
    listed = {name: known[name].hex() for name in sorted(known)}
    _write(folder / LIST_FILE, {"server": server.fingerprint, "clients": listed}, secret=False)
    return Federation(server.fingerprint, known)


def read_server_key(path: Path) -> ServerKey:
    found = _read(path, "certificate", "private", secret=True)
    return ServerKey(certificate=found["certificate"], private=found["private"])


def read_client_key(path: Path) -> ClientKey:
    found = _read(path, "client", "private", secret=True)
    try:
        return ClientKey(
            _checked_name(found["client"]), Ed25519PrivateKey.from_private_bytes(bytes.fromhex(found["private"]))
        )
    except (ValueError, TypeError) as error:
        raise _unreadable(path) from error


def read_federation(path: Path) -> Federation:
    """Return the public list from its file."""
    found = _read(path, "server", "clients", secret=False)
    try:
        clients = {
            _checked_name(name): _checked_public(name, bytes.fromhex(key)) for name, key in found["clients"].items()
        }
        if len(bytes.fromhex(found["server"])) != hashlib.sha256().digest_size:
            raise ValueError("the fingerprint is no SHA-256")
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(path) from error
    return Federation(found["server"], clients)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or f"{name}.key" == SERVER_FILE:
        raise ConfigError(
            f"a client cannot be called {name!r}; a name has up to 64 letters, digits, '.', '_' and '-', begins with a "
            "letter or digit, and is not 'server'.",
            name="client",
            received=name,
        )
    return name


def _checked_public(name: str, public: bytes) -> bytes:
    try:
        Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise ConfigError(
            f"the public key of client {name} is no Ed25519 key of 64 hexadecimal digits; `tfdist federated keys` "
            "prints it where the key was made.",
            name=name,
            received=public.hex(),
        ) from None
    return public


def _write(path: Path, content: Mapping[str, Any], *, secret: bool) -> None:
    """Write a file durably: others are told the key at once, and it cannot be made again."""
    text = json.dumps({"format": _FORMAT, **content}, indent=2) + "\n"
    write_durably(path, text, mode=0o600 if secret else 0o644)


def _read(path: Path, *fields: str, secret: bool) -> dict[str, Any]:
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingFileError(
            f"{path} does not exist; `tfdist federated keys --help` says how keys are made.", path=path
        ) from error
    except ValueError as error:  # no UTF-8
        raise _unreadable(path) from error
    if secret and mode & 0o077:
        raise ConfigError(
            f"{path} is a secret, and other users of this machine can read it. Run: chmod 600 {path}", path=path
        )
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _unreadable(path) from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not set(fields) <= set(found):
        raise _unreadable(path)
    return found


def _unreadable(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is not the file that is expected here. A server takes {SERVER_FILE}, a client NAME.key, and both take "
        f"{LIST_FILE}; `tfdist federated keys` makes them.",
        path=path,
    )
