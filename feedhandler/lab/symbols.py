"""The symbols of a workload's messages, and what clients that want some of them get.

What it is for: in a bank few subscribers want everything. A client's symbols are drawn by a seed,
each symbol as likely as it has messages: what trades most is wanted most. The same seed and client
number draw the same symbols, whatever the number of clients. For each choice the number of wanted
messages in each packet is known beforehand, so that such a client's deliveries are checked like any
other's. No I/O.
"""

from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import MessageIndex, PacketHeader
from feedhandler.codecs.scanner import REJECT_COUNT, scan_datagrams
from feedhandler.lab.plan import symbols_wanted
from feedhandler.lab.results import Exchange
from feedhandler.lab.workload import Workload

#: Messages that are scanned at a time; one packet has fewer.
INDEX_MESSAGES = 1 << 17
#: The word in the key of a message without a symbol.
NONE = "-"

Array = np.ndarray[Any, Any]


class WorkloadSymbols:
    """The symbols of a workload. Raises `UsageError` where no message has one.

    words     the symbols' words in routing keys, in order; each once
    messages  int64: how many messages of the workload each has
    """

    def __init__(self, workload: Workload) -> None:
        packets, raw = _symbols_of(workload)
        different, which = np.unique(raw, return_inverse=True)
        texts = [workload.feed.symbol_text(symbol) for symbol in different.tolist()]
        self.words = sorted(set(texts) - {NONE})
        if not self.words:
            raise UsageError("no message has a symbol", "leave out --symbols")
        indexes = {word: index for index, word in enumerate(self.words)}
        index_of = np.array([indexes.get(text, -1) for text in texts], np.int64)
        kept = index_of[which] >= 0
        #: int64, of each message that has a symbol: its packet, and its symbol's index in `words`.
        self._packet, self._index = packets[kept], index_of[which][kept]
        self._packets = len(workload)
        self._feed_key = workload.feed.key
        self.messages = np.bincount(self._index, minlength=len(self.words))
        service = workload.services[workload.slot[self._packet]]
        #: int64[pairs, 2]: each symbol with each service that has messages of it.
        self._pairs = np.unique(np.column_stack([self._index, service]), axis=0)

    def choose(self, word: str, seed: int, client: int) -> Array | None:
        """Draw the symbols of a client: indexes in `words`, ascending; None: everything.

        `word` is one of `--symbols`, `client` the client's number from 0.
        """
        count = symbols_wanted(word, len(self.words))
        if not count:
            return None
        chance = np.random.default_rng([seed, client])
        shares = self.messages / self.messages.sum()
        return np.sort(chance.choice(len(self.words), count, replace=False, p=shares))

    def patterns(self, chosen: Array, exchange: Exchange) -> str:
        """Return the subscription to the chosen symbols.

        On a topic exchange each symbol in any service, on a direct one each key that exists.
        """
        if exchange == "topic":
            return ",".join(f"{self._feed_key}.*.{self.words[index]}" for index in chosen.tolist())
        pairs = self._pairs[np.isin(self._pairs[:, 0], chosen)]
        return ",".join(
            f"{self._feed_key}.{service}.{self.words[index]}" for index, service in pairs.tolist()
        )

    def wanted(self, chosen: Array) -> Array:
        """Count each packet's messages of these symbols (u16, for all packets of the workload)."""
        mine = np.zeros(len(self.words), bool)
        mine[chosen] = True
        packets = self._packet[mine[self._index]]
        return np.bincount(packets, minlength=self._packets).astype(np.uint16)


def _symbols_of(workload: Workload) -> tuple[Array, Array]:
    """Return for every message the number of its packet (int64), and its symbol as scanned (u64).

    Raises `UsageError` where a packet's messages cannot be scanned.
    """
    index, header = MessageIndex(INDEX_MESSAGES), PacketHeader()
    packets: list[Array] = []
    symbols: list[Array] = []
    first = 0
    while first < len(workload):
        end = min(len(workload), first + INDEX_MESSAGES)
        rejects = np.zeros(REJECT_COUNT, np.uint64)
        index.clear()
        starts, sizes = workload.offset[first:end].astype(np.int64), workload.length[first:end]
        done = scan_datagrams(
            workload.feed.table, workload.data, starts, sizes, header, index, rejects
        )
        if rejects[1:].any() or not done:
            raise UsageError(
                "a packet that cannot be split into its messages",
                "it is compressed or damaged: leave out --symbols",
            )
        counts = workload.count[first : first + done].astype(np.int64)
        packets.append(np.repeat(np.arange(first, first + done), counts))
        symbols.append(np.asarray(index.symbols)[: index.count].copy())
        first += done
    return np.concatenate(packets), np.concatenate(symbols)
