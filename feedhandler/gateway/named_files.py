"""Checks of a configuration that take its feed and the files and folders that it names.

`check_named` is the last check before a gateway starts: certificates and keys, files of passwords,
folders, and what brokers are to get. `config check` and `run` make it, so that both refuse alike.
What only the host knows at that moment (variables, interfaces, ports) shows as the gateway starts.
"""

from collections.abc import Iterator
from pathlib import Path

from feedhandler.amqp.identity import read_password
from feedhandler.amqp.policies import JOURNAL
from feedhandler.amqp.routing import AddressError, parse_address
from feedhandler.amqp.security import ClientTls, ServerTls
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.toml_text import KeyPath, WrongKey, read_text
from feedhandler.config import Config
from feedhandler.config.amqp import hash_of
from feedhandler.config.publishing import PublishConfig
from feedhandler.config.recording import check_folder


def check_named(config: Config, feed: Feed, path: str | Path) -> None:
    """Check what the configuration in file `path` names. Raises `ConfigError`: file, line, key."""
    try:
        _check_tls(config)
        _check_passwords(config)  # those of servers are read for `open_config` already
        for number, published in enumerate(config.publish):
            _check_published(published, ("publish", number), feed)
        _check_folders(config)
    except WrongKey as wrong:
        raise wrong.located(read_text(path, "check path and rights"), str(path)) from None


def _check_tls(config: Config) -> None:
    tls = config.amqp.tls
    if tls.listen:
        try:
            ServerTls(tls.certificate, tls.key, tls.client_ca)
        except ConfigError as error:
            raise _of_key(("amqp", "tls"), error) from None


def _of_key(table: KeyPath, error: ConfigError) -> WrongKey:
    """Return the refusal for an error whose text begins with the key: `key: reason`."""
    key, _, reason = error.message.partition(": ")
    return WrongKey((*table, key), reason, error.hint)


def _check_passwords(config: Config) -> None:
    for number, user in enumerate(config.amqp.users):
        if user.password_file:
            try:
                hash_of(user)
            except ConfigError as error:
                here = ("amqp", "users", number, "password_file")
                raise WrongKey(here, error.message, error.hint) from None
    for number, published in enumerate(config.publish):
        if published.password_file:
            try:
                read_password(published.password_file, "")
            except ConfigError as error:
                raise WrongKey(
                    ("publish", number, "password_file"), error.message.strip(), error.hint
                ) from None


def _check_published(published: PublishConfig, here: KeyPath, feed: Feed) -> None:
    for key, address in (("patterns", published.patterns), ("types", published.address)):
        try:
            parse_address(address, feed.type_code, records=True)
        except AddressError as error:
            raise WrongKey((*here, key), error.message, "see docs/addresses.md, Patterns") from None
    if published.broker_address.encrypted:
        try:
            ClientTls(published.ca, published.certificate, published.key)
        except ConfigError as error:
            raise _of_key(here, error) from None


def _check_folders(config: Config) -> None:
    """Check that what is to be a folder is no file; the one of recordings must be there."""
    if config.record.dir:
        try:
            check_folder(config.record.dir)
        except ConfigError as error:
            raise WrongKey(("record", "dir"), error.message, error.hint) from None
    for here, folder in _folders(config):
        found = next(each for each in (Path(folder), *Path(folder).parents) if each.exists())
        if not found.is_dir():
            hint = "name a folder: it is made where it is not there"
            raise WrongKey(here, f"{found} is a file", hint)


def _folders(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Yield each folder that is made where it is not there, by its key."""
    if config.amqp.queues_folder:
        yield ("amqp", "queues_folder"), config.amqp.queues_folder
    for number, queue in enumerate(config.queues):
        yield ("queue", number, "folder"), queue.folder
        for index, folder in enumerate(queue.paths):
            yield ("queue", number, "paths", index), str(Path(queue.folder, folder))
    for number, published in enumerate(config.publish):
        if published.when_full == JOURNAL:
            yield ("publish", number, "journal_folder"), published.journal_folder
