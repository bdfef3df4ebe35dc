"""`feedhandler user`: the hash of a password, to put into a gateway's configuration.

The password comes from the terminal, unseen and twice, or is standard input's first line; never
from an argument, which other users of the machine can read.
"""

import getpass
import sys

import msgspec

from feedhandler.amqp.users import PASSWORD_BYTES_MAX, hash_password
from feedhandler.codecs.errors import UsageError
from feedhandler.config import UserConfig


def run(name: str) -> int:
    """Print an `[[amqp.users]]` table for the user; the password is in it as a hash.

    Raises `UsageError`.
    """
    try:
        msgspec.convert({"name": name, "services": ["*"]}, UserConfig)
    except msgspec.ValidationError:
        raise UsageError(
            f"{name!r} is no user's name", "1 to 64 letters, digits and the signs _ - . @"
        ) from None
    try:
        password = _from_terminal() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
        size = len(password.encode())
    except UnicodeError:  # also of what a locale without UTF-8 reads as surrogates
        raise UsageError("the password is no text", "pipe a line of UTF-8 in") from None
    except EOFError:
        password, size = "", 0
    if not password:
        raise UsageError("no password", "type one, or pipe a line of text in")
    if size > PASSWORD_BYTES_MAX or "\0" in password:
        raise UsageError(f"a password has at most {PASSWORD_BYTES_MAX} bytes, none of them zero")
    print("[[amqp.users]]")
    print(f'name = "{name}"')
    print(f'password = "{hash_password(password)}"')
    print('services = ["*"]')
    return 0


def _from_terminal() -> str:
    password = getpass.getpass("password: ")
    if getpass.getpass("again: ") != password:
        raise UsageError("the two are not the same", "type it again")
    return password
