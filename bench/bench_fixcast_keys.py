"""FIX over multicast: sealed and signed datagrams of 1,400 bytes a second, on one core.

Sending is `SigningSealer.seal` with batches of 64; receiving is `SealedReceiver` with each
verification. Beside them the ceiling, measured in the same run: the library's AES-256-GCM alone
over the same bytes with one key, nonce and header, as a loop around its one call. Processor time,
the best of several rounds: what else runs on the machine does not count.

The bar: 50,000 sealed and signed datagrams a second.
"""

import time
from collections.abc import Callable
from typing import Any

from feedhandler.fixcast.crypto import AESGCM, private_key, public_bytes
from feedhandler.fixcast.keys import ChannelKey, KeyRing
from feedhandler.fixcast.sealing import HEADER_BYTES, PLAIN_BYTES_MAX
from feedhandler.fixcast.signing import Plain, SealedReceiver, SigningSealer, VerificationSettings

DATAGRAMS = 20_000
ROUNDS = 5
BAR_S = 50_000
NOW_NS = 1_700_000_000_000_000_000
SMOKE: dict[str, object] = {"DATAGRAMS": 640, "ROUNDS": 1}
_CHANNEL = "equities-1"


def _best_s(work: Callable[[], object], rounds: int) -> float:
    """Return the least processor time of a round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def _ring() -> KeyRing:
    return KeyRing(_CHANNEL, [ChannelKey(_CHANNEL, 1, bytes(range(32)))])


def _ceiling(rounds: int) -> tuple[float, float]:
    """Return datagrams a second of the library's primitive alone: encrypted, decrypted."""
    cipher, nonce, header = AESGCM(bytes(range(32))), bytes(12), bytes(HEADER_BYTES)
    payload = bytes(PLAIN_BYTES_MAX)
    sealed = cipher.encrypt(nonce, payload, header)

    def encrypt() -> None:
        for _ in range(DATAGRAMS):
            cipher.encrypt(nonce, payload, header)

    def decrypt() -> None:
        for _ in range(DATAGRAMS):
            cipher.decrypt(nonce, sealed, header)

    return DATAGRAMS / _best_s(encrypt, rounds), DATAGRAMS / _best_s(decrypt, rounds)


def _sent(signer: Any) -> list[bytes]:
    made = SigningSealer(_ring(), signer)
    payload = bytes(PLAIN_BYTES_MAX)
    out: list[bytes] = []
    for _ in range(DATAGRAMS):
        out += made.seal(payload, NOW_NS)
    return out + made.flush(NOW_NS)


def _received(datagrams: list[bytes], publisher: bytes, verify: Any) -> int:
    """Return datagrams that were delivered from one line."""
    to = SealedReceiver(_ring(), [publisher], VerificationSettings(verify))
    delivered = 0
    for each in datagrams:
        delivered += sum(isinstance(event, Plain) for event in to.datagram(each, 0, NOW_NS))
    return delivered


def run(quick: bool = False) -> dict[str, Any]:
    """Measure sending and receiving beside the primitive alone."""
    rounds = 2 if quick else ROUNDS
    signer = private_key(bytes(32))
    publisher = public_bytes(signer)
    encrypted_s, decrypted_s = _ceiling(rounds)
    sealed_s = DATAGRAMS / _best_s(lambda: _sent(None), rounds)
    signed_s = DATAGRAMS / _best_s(lambda: _sent(signer), rounds)
    datagrams, problems = _sent(signer), []
    received: dict[str, float] = {}
    for verify in ("off", "before", "after"):
        if (delivered := _received(datagrams, publisher, verify)) != DATAGRAMS:
            problems.append(f"{verify}: {delivered} of {DATAGRAMS} were delivered")
        work = lambda verify=verify: _received(datagrams, publisher, verify)  # noqa: E731
        received[verify] = DATAGRAMS / _best_s(work, rounds)
    return {
        "datagram_bytes": max(map(len, datagrams)),
        "sealed_s": round(sealed_s),
        "sealed_and_signed_s": round(signed_s),
        "bar_s": BAR_S,
        "bar_met": signed_s >= BAR_S,
        "primitive_encrypt_s": round(encrypted_s),
        "of_primitive": round(signed_s / encrypted_s, 2),
        "received_s": {verify: round(each) for verify, each in received.items()},
        "primitive_decrypt_s": round(decrypted_s),
        "problems": problems,
    }
