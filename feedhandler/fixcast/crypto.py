"""Cryptographic primitives of sealing and signing, all from the library `cryptography`.

AES-256-GCM (NIST SP 800-38D), HKDF with SHA-256 (RFC 5869), Ed25519 (RFC 8032). The library is an
extra (`fixcast`): importing this module where it is missing raises `ConfigError` with one line.
Nothing else of the package imports the library.
"""

import os

from feedhandler.codecs.errors import ConfigError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ConfigError(
        "encryption and signatures need the library cryptography, which is not installed",
        "in the checkout: pip install '.[fixcast]'",
    ) from error

__all__ = [
    "AESGCM",
    "InvalidSignature",
    "InvalidTag",
    "PrivateKey",
    "PublicKey",
    "derived",
    "private_key",
    "public_bytes",
    "public_key",
]

#: Bytes of a secret, of a private and of a public key.
KEY_BYTES = 32

PrivateKey = Ed25519PrivateKey
PublicKey = Ed25519PublicKey


def derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Derive a 32-byte key from `secret`; each `salt` and each `info` gives another one."""
    return HKDF(SHA256(), KEY_BYTES, salt, info).derive(secret)


def private_key(seed: bytes | None = None) -> PrivateKey:
    """Return the private signing key with this 32-byte seed; None: a new one."""
    return Ed25519PrivateKey.from_private_bytes(os.urandom(KEY_BYTES) if seed is None else seed)


def public_key(raw: bytes) -> PublicKey:
    """Return the public key with these 32 bytes. Raises `ConfigError` where they are not one."""
    try:
        return Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise ConfigError(
            "not a public key of Ed25519", f"it has {KEY_BYTES} bytes, as `keys new` writes them"
        ) from None


def public_bytes(key: PrivateKey) -> bytes:
    """Return the 32 bytes of a private key's public key."""
    return key.public_key().public_bytes_raw()
